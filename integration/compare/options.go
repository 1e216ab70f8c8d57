package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// sizes are the options that affect the figures.
type sizes struct {
	Quick   bool `json:"quick"`
	Repeats int  `json:"repeats"`
	// Rate is the number of tasks per second of the workloads steady and pools, and Seconds is for how long they are
	// scheduled.
	Rate    int `json:"rate"`
	Seconds int `json:"seconds"`
	// Starved is the number of tasks per second of the workload starved.
	Starved int `json:"starved"`
	// Instant is the number of tasks that are due at the same time.
	Instant int `json:"instant"`
	// Restart is the number of tasks that wait while their server restarts.
	Restart int `json:"restart"`
	// Pending is the number of tasks in the backlog.
	Pending int `json:"pending"`

	only       []string      // names of the contenders to run; empty for all
	rehearsal  int           // seconds for which tasks are scheduled before steady is measured
	scheduling time.Duration // how long each way of scheduling is measured
	delays     span          // delays of tasks in the workload steady
	patience   time.Duration // how long to wait for tasks that are missing
	spread     span          // due times of the workload restart
	ahead      time.Duration // time from the first scheduled task until all tasks are due
}

// span is a range of durations.
type span struct{ from, to time.Duration }

// at returns the duration at a fraction of the span, from 0 to 1.
func (s span) at(share float64) time.Duration {
	return s.from + time.Duration(share*float64(s.to-s.from))
}

func (s span) String() string { return fmt.Sprintf("%g to %g s", s.from.Seconds(), s.to.Seconds()) }

// includes reports whether a contender is to run. Some workloads put a number in front of a contender's name.
func (s sizes) includes(c contender) bool {
	return len(s.only) == 0 || slices.ContainsFunc(s.only, func(name string) bool {
		return c.name == name || strings.HasSuffix(c.name, ": "+name)
	})
}

// defaults returns the sizes of a run. A quick run only shows that everything works, and its figures mean nothing.
func defaults(quick bool) sizes {
	s := sizes{
		Repeats: 3, Rate: 400, Seconds: 8, Starved: 100, Instant: 5_000, Restart: 1_000, Pending: 1_000_000,
		rehearsal: 2, scheduling: 2 * time.Second, delays: span{time.Second, 5 * time.Second}, patience: time.Minute,
		spread: span{2 * time.Second, 12 * time.Second}, ahead: 4 * time.Second,
	}
	if quick {
		s = sizes{
			Quick: true, Repeats: 1, Rate: 20, Seconds: 1, Starved: 20, Instant: 50, Restart: 100, Pending: 2_000,
			rehearsal: 1, scheduling: 100 * time.Millisecond, delays: span{300 * time.Millisecond, time.Second}, patience: 20 * time.Second,
			spread: span{time.Second, 4 * time.Second}, ahead: time.Second,
		}
	}
	return s
}

func (s sizes) validate() error {
	for _, name := range s.only {
		if !slices.ContainsFunc(slices.Concat(contenders(), tuned()), func(c contender) bool { return c.name == name }) {
			return fmt.Errorf("--contender %q; expected a name from the tables, such as %q", name, byRiver)
		}
	}
	for _, one := range []struct {
		name  string
		value int
	}{{"repeats", s.Repeats}, {"rate", s.Rate}, {"seconds", s.Seconds}, {"starved", s.Starved}, {"instant", s.Instant}, {"restart", s.Restart}, {"pending", s.Pending}} {
		if one.value < 1 {
			return fmt.Errorf("--%s: %d; expected 1 or more", one.name, one.value)
		}
	}
	return nil
}
