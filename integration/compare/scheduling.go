package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// later is the due time of the tasks in the workload schedule, which is after the end of the workload.
var later = span{10 * time.Minute, time.Hour}

// batchers is the number of goroutines that schedule batches.
const batchers = 4

// scheduling measures how many tasks a contender schedules in a fixed time.
func scheduling(ctx context.Context, r *run, c contender, row *bench.Case) error {
	return r.with(ctx, c, func(s system) error {
		var number atomic.Int64
		next := func() task { return task{number.Add(1), time.Now().Add(later.at(rand.Float64()))} }
		single := func(ctx context.Context) (int, error) { return 1, s.schedule(ctx, next()) }
		// Open the connections of all goroutines before the measurement.
		if _, err := rate(ctx, r.sizes.scheduling, writers, single); err != nil {
			return err
		}
		one, err := rate(ctx, r.sizes.scheduling, writers, single)
		if err != nil {
			return err
		}
		row.Add(metricOne, "tasks/s", one)
		many, err := rate(ctx, r.sizes.scheduling, batchers, func(ctx context.Context) (int, error) {
			list := make([]task, batchSize)
			for i := range list {
				list[i] = next()
			}
			return len(list), s.scheduleAll(ctx, list)
		})
		if errors.Is(err, errNoBatches) {
			return nil
		}
		if err == nil {
			row.Add(metricBatch, "tasks/s", many)
		}
		return err
	})
}

// rate calls do from several goroutines until the time is over, and returns how many tasks they did per second.
func rate(ctx context.Context, during time.Duration, goroutines int, do func(ctx context.Context) (int, error)) (float64, error) {
	var done atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range goroutines {
		all.Go(func() error {
			for time.Since(began) < during && ctx.Err() == nil {
				n, err := do(ctx)
				if err != nil {
					return err
				}
				done.Add(int64(n))
			}
			return ctx.Err()
		})
	}
	err := all.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), err
}
