package schedule

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// RecurringState tells whether a Recurring makes tasks, and why not.
type RecurringState string

// Paused and wrong ones make no tasks until somebody changes them.
const (
	RecurringActive RecurringState = "active"
	RecurringPaused RecurringState = "paused"
	RecurringEnded  RecurringState = "ended" // no occurrence follows
	RecurringWrong  RecurringState = "wrong" // LastError says why
)

// State tells whether it makes tasks. One in a time zone that is not known here is
// active: its relay says what is wrong.
func (r Recurring) State(now time.Time) RecurringState {
	switch {
	case r.LastError != "":
		return RecurringWrong
	case r.Paused:
		return RecurringPaused
	}
	if next, err := r.Next(now, 1); err == nil && len(next) == 0 {
		return RecurringEnded
	}
	return RecurringActive
}

// Upcoming are the next n occurrences that will happen as things stand: none if it
// is paused or wrong, nor if its time zone is not known here.
func (r Recurring) Upcoming(now time.Time, n int) []Occurrence {
	if r.Paused || r.LastError != "" {
		return nil
	}
	list, err := r.Next(now, n)
	if err != nil {
		return nil
	}
	return list
}

// Timetable says when it recurs, such as "30 2 * * * Europe/Berlin" or "every 15m".
func (r Recurring) Timetable() string {
	if r.Cron == "" {
		return "every " + topology.FormatDuration(r.Every)
	}
	r.setDefaults()
	return r.Cron + " " + r.TimeZone
}
