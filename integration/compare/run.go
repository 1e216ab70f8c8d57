package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// workload is a measurement that runs on all contenders, one after the other.
type workload struct {
	name, about string
	title       func(s sizes) string
	repeats     func(s sizes) int
	contenders  func() []contender
	work        func(ctx context.Context, r *run, c contender, row *bench.Case) error
	all         func(ctx context.Context, r *run) error // replaces work for contenders that work at the same time
}

// workloads lists the workloads in the order in which they run.
func workloads() []workload {
	repeated := func(s sizes) int { return s.Repeats }
	return []workload{
		{
			name: "steady", about: "lateness and processor time at a steady rate, with random delays",
			title: func(s sizes) string {
				return fmt.Sprintf("%d tasks a second for %d s, delays of %s", s.Rate, s.Seconds, s.delays)
			},
			repeats: repeated, contenders: func() []contender { return slices.Concat(contenders(), tuned()) }, work: steady,
		},
		{
			name: "instant", about: "the time until many tasks that are due at the same time are handled",
			title:   func(s sizes) string { return fmt.Sprintf("%d tasks due at the same time", s.Instant) },
			repeats: repeated, contenders: contenders, work: instant,
		},
		{
			name: "schedule", about: "the rate of scheduling, one at a time and in batches",
			title: func(sizes) string {
				return fmt.Sprintf("tasks scheduled per second, from %d goroutines, and in batches of %d", writers, batchSize)
			},
			repeats: repeated, contenders: contenders, work: scheduling,
		},
		{
			name: "statements", about: "statements, commits and bytes of the log that a task costs PostgreSQL",
			title: func(s sizes) string {
				return fmt.Sprintf("%d tasks a second for %d s, delays of %s", s.Rate, s.Seconds, s.delays)
			},
			repeats: func(sizes) int { return 1 }, contenders: contenders, work: statements,
		},
		{
			name: "starved", about: "lateness while a contender and its servers share 1, 0.5 and 0.25 processors",
			title: func(s sizes) string {
				return fmt.Sprintf("%d tasks a second for %d s, delays of %s, on a limited number of processors", s.Starved, s.Seconds, s.delays)
			},
			repeats: func(sizes) int { return 1 }, contenders: starvable, work: starved,
		},
		{
			name: "pools", about: "lateness while a contender's statements share 2, 4 and 24 connections",
			title: func(s sizes) string {
				return fmt.Sprintf("%d tasks a second for %d s, delays of %s, with a limited number of connections", s.Rate, s.Seconds, s.delays)
			},
			repeats: func(sizes) int { return 1 }, contenders: pooled, work: pools,
		},
		{
			name: "restart", about: "tasks that are lost, early or handled twice when a server is restarted or killed",
			title:   func(s sizes) string { return fmt.Sprintf("%d tasks due within %s", s.Restart, s.spread) },
			repeats: func(sizes) int { return 1 }, contenders: contenders, all: restarting,
		},
		{
			name: "backlog", about: "memory and disk space of a waiting task",
			title:   func(s sizes) string { return fmt.Sprintf("%d tasks waiting", s.Pending) },
			repeats: func(sizes) int { return 1 }, contenders: contenders, work: backlog,
		},
	}
}

// names returns the names of the workloads.
func names() []string {
	var all []string
	for _, w := range workloads() {
		all = append(all, w.name)
	}
	return all
}

// result is the result of one workload.
type result struct {
	Name     string            `json:"name"`
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Machine  bench.Machine     `json:"machine"`
	Versions map[string]string `json:"versions"`
	Sizes    sizes             `json:"sizes"`
	Title    string            `json:"title"`
	Scenario *bench.Scenario   `json:"scenario"`
}

// run is a run of one workload.
type run struct {
	*env

	contenders []contender
	sizes      sizes
	log        func(line string)
	result     *result
}

// measure runs a workload on all contenders, in turns.
func measure(ctx context.Context, e *env, w workload, s sizes, log func(line string)) (*result, error) {
	r := &run{env: e, sizes: s, log: log, result: &result{
		Name: w.name, Started: time.Now(), Sizes: s, Title: w.title(s), Versions: e.allVersions(),
		Machine:  bench.Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()},
		Scenario: &bench.Scenario{Name: w.name},
	}}
	defer func() { r.result.Seconds = time.Since(r.result.Started).Seconds() }()
	var works []func() error
	for _, c := range w.contenders() {
		if !s.includes(c) {
			continue
		}
		if reason, missing := e.without[c.keeper]; missing {
			r.result.Scenario.Notef("%s is left out: %s", c.name, reason)
			continue
		}
		r.contenders = append(r.contenders, c)
		if w.work == nil {
			continue
		}
		row := r.row(c)
		works = append(works, func() error {
			began := time.Now()
			err := w.work(ctx, r, c, row)
			if err != nil {
				err = fmt.Errorf("%s, %s: %w", w.name, c.name, err)
			}
			log(fmt.Sprintf("%s, %s: %.1f s", w.name, c.name, time.Since(began).Seconds()))
			return err
		})
	}
	if w.all != nil {
		works = append(works, func() error { return w.all(ctx, r) })
	}
	return r.result, bench.Interleave(w.repeats(s), works, func(int) {})
}

// row returns the row of a contender.
func (r *run) row(c contender) *bench.Case {
	return r.result.Scenario.Find(r.result.Title, c.name, !strings.Contains(c.name, "rabbitdelay"))
}

// with opens a contender, calls do, and closes the contender.
func (r *run) with(ctx context.Context, c contender, do func(s system) error) error {
	s, err := c.open(ctx, r.env)
	if err != nil {
		return err
	}
	err = do(s)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if cerr := s.close(ending); cerr != nil {
		err = errors.Join(err, fmt.Errorf("cleaning up: %w", cerr))
	}
	return err
}

// working runs the system's handlers while do runs.
func working(ctx context.Context, s system, l *ledger, do func() error) error {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.run(running, l.handle) }()
	err := do()
	cancel()
	return errors.Join(err, <-ended)
}

// each calls the function do for every number below n, from as many goroutines as there are writers.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	for w := range writers {
		all.Go(func() error {
			for i := w; i < n; i += writers {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// store schedules tasks as fast as possible, in batches if the contender supports them.
func store(ctx context.Context, s system, l *ledger, list []task) error {
	for part := range slices.Chunk(list, batchSize) {
		err := s.scheduleAll(ctx, part)
		if errors.Is(err, errNoBatches) {
			err = each(ctx, len(part), func(ctx context.Context, i int) error { return s.schedule(ctx, part[i]) })
		}
		if err != nil {
			return err
		}
		l.asked(part...)
	}
	return nil
}

// once notes tasks that are missing, and tasks that were handled more than once.
func (r *run) once(c contender, l *ledger, missing int) {
	twice := 0
	for _, n := range l.times() {
		if n > 1 {
			twice++
		}
	}
	if missing > 0 || twice > 0 {
		r.result.Scenario.Notef("%s: %d tasks were not handled within %s, %d were handled more than once", c.name, missing, r.sizes.patience, twice)
	}
}
