package main

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// steady measures the lateness of tasks that are scheduled one by one at a steady rate, and the processor time that
// they take from the first to the last.
func steady(ctx context.Context, r *run, c contender, row *bench.Case) error {
	return r.with(ctx, c, func(s system) error {
		l := newLedger()
		return working(ctx, s, l, func() error {
			if err := r.rehearse(ctx, s, l); err != nil {
				return err
			}
			before, err := r.usage(ctx, c)
			if err != nil {
				r.result.Scenario.Notef("no processor time: %v", err)
			}
			kept, err := r.pace(ctx, s, l, 0)
			if err != nil {
				return err
			}
			if !kept {
				r.result.Scenario.Notef("%s did not sustain the rate", c.name)
			}
			missing, err := l.wait(ctx, r.sizes.patience)
			if err != nil {
				return err
			}
			r.once(c, l, missing)
			late := l.lateness()
			if len(late) == 0 {
				return nil
			}
			row.Add(metricEarliest, "ms late", late[0])
			row.AddPercentiles("ms late", late, 0.5, 0.95, 0.99, 1)
			if before == nil {
				return nil
			}
			after, err := r.usage(ctx, c)
			if err != nil {
				return err
			}
			spent(row, before, after, len(late))
			return nil
		})
	})
}

// spent records the processor time that each of n tasks took.
func spent(row *bench.Case, before, after map[server]float64, n int) {
	total := 0.0
	for _, part := range []struct {
		metric string
		of     []server
	}{{metricClient, []server{client}}, {metricBroker, []server{rabbitMQ, pluggedRabbitMQ}}, {metricDatabase, []server{postgreSQL, redisServer}}} {
		for _, s := range part.of {
			if _, used := before[s]; used {
				each := (after[s] - before[s]) * 1e6 / float64(n)
				row.Add(part.metric, "us", each)
				total += each
			}
		}
	}
	row.Add(metricTotal, "us", total)
}

// unmeasured is the number of the first task that is not measured. Measured tasks have lower numbers.
const unmeasured = 1 << 40

// rehearse schedules tasks, waits until they have been handled, and removes them from the ledger. Otherwise the
// measurement would include one-time work, such as the login of 64 connections and the first use of each statement.
func (r *run) rehearse(ctx context.Context, s system, l *ledger) error {
	short := *r
	short.sizes.Seconds, short.sizes.delays = r.sizes.rehearsal, span{500 * time.Millisecond, time.Second}
	if _, err := short.pace(ctx, s, l, unmeasured); err != nil {
		return err
	}
	if _, err := l.wait(ctx, r.sizes.patience); err != nil {
		return err
	}
	l.forget()
	return nil
}

// pace schedules tasks at the rate, and reports whether the contender sustained it. The first
// task has the number first.
func (r *run) pace(ctx context.Context, s system, l *ledger, first int64) (kept bool, err error) {
	queue := make(chan task, r.sizes.Rate) // a contender may fall behind by a second
	all, writing := errgroup.WithContext(ctx)
	for range writers {
		all.Go(func() error {
			for t := range queue {
				if err := s.schedule(writing, t); err != nil {
					return err
				}
				l.asked(t)
			}
			return nil
		})
	}
	kept = true
	began, n := time.Now(), r.sizes.Rate*r.sizes.Seconds
	for sent := 0; sent < n && writing.Err() == nil; {
		due := min(n, int(time.Since(began).Seconds()*float64(r.sizes.Rate)))
		for ; sent < due; sent++ {
			t := task{first + int64(sent), time.Now().Add(r.sizes.delays.at(rand.Float64()))}
			select {
			case queue <- t:
			default:
				kept = false
				select {
				case queue <- t:
				case <-writing.Done():
				}
			}
		}
		_ = wait.For(writing, 5*time.Millisecond) // the loop checks it
	}
	close(queue)
	return kept, all.Wait()
}
