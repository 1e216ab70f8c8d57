package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// restarting restarts each server, and then kills it, while tasks are due. The contenders that use a server work at the
// same time.
func restarting(ctx context.Context, r *run) error {
	for _, s := range []server{redisServer, postgreSQL, rabbitMQ, pluggedRabbitMQ} {
		if !slices.ContainsFunc(r.contenders, func(c contender) bool { return c.uses(s) }) {
			continue
		}
		for _, how := range []string{"restarted", "killed"} {
			err := r.outage(ctx, s, how)
			if errors.Is(err, broker.ErrNotOurs) || errors.Is(err, database.ErrNotOurs) {
				r.result.Scenario.Notef("%s is a server from the environment, so it is not %s", s, how)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", s, how, err)
			}
			r.log(fmt.Sprintf("restart, %s %s", s, how))
		}
	}
	return nil
}

// outage stops a server halfway through the due times of tasks and starts it again.
func (r *run) outage(ctx context.Context, s server, how string) error {
	halfway := make(chan struct{}) // closed when the server answers again
	all, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{}, len(r.contenders))
	// A contender that is closed purges the delay queues, so none is closed before all have been measured.
	var measuring sync.WaitGroup
	n := 0
	for _, c := range r.contenders {
		if !c.uses(s) {
			continue
		}
		n++
		measuring.Add(1)
		all.Go(func() error {
			measured := sync.OnceFunc(measuring.Done)
			defer measured() // also if the contender cannot be opened
			err := r.with(ctx, c, func(sys system) error {
				err := r.through(ctx, c, sys, s, how, ready, halfway)
				measured()
				measuring.Wait()
				return err
			})
			if err != nil {
				err = fmt.Errorf("%s: %w", c.name, err)
			}
			return err
		})
	}
	all.Go(func() error {
		for range n {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := wait.For(ctx, r.sizes.spread.at(0.5)); err != nil {
			return err
		}
		server, kill := r.of(s)
		if how == "killed" {
			if err := kill(ctx); err != nil {
				return err
			}
			if err := server.Start(ctx); err != nil {
				return err
			}
		} else if err := server.Restart(ctx); err != nil {
			return err
		}
		close(halfway)
		return nil
	})
	return all.Wait()
}

// through schedules tasks, waits for the outage and for the tasks, and records the results.
func (r *run) through(ctx context.Context, c contender, sys system, s server, how string, ready chan<- struct{}, over <-chan struct{}) error {
	l := newLedger()
	l.effects = true
	row := r.result.Scenario.Find(fmt.Sprintf("%s %s", s, how), c.name, false)
	return working(ctx, sys, l, func() error {
		now := time.Now()
		list := make([]task, r.sizes.Restart)
		for i := range list {
			list[i] = task{int64(i), now.Add(r.sizes.spread.at(float64(i) / float64(len(list))))}
		}
		if err := store(ctx, sys, l, list); err != nil {
			return err
		}
		ready <- struct{}{}
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := wait.For(ctx, time.Until(list[len(list)-1].due)); err != nil {
			return err
		}
		missing, err := l.wait(ctx, r.sizes.patience/2)
		if err != nil {
			return err
		}
		times, err := effectsOf(ctx, sys, l)
		if err != nil {
			return err
		}
		late := l.lateness()
		early, twice := 0, 0
		for _, ms := range late {
			if ms < 0 {
				early++
			}
		}
		for _, n := range times {
			if n > 1 {
				twice++
			}
		}
		row.Add(metricLost, "tasks", float64(missing))
		row.Add(metricEarly, "tasks", float64(early))
		row.Add(metricTwice, "tasks", float64(twice))
		if len(late) > 0 {
			row.Add(metricLast, "ms late", late[len(late)-1])
		}
		return nil
	})
}

// recorded is implemented by a system with a database that has a table of effects.
type recorded interface{ database() (dsn string) }

// effectsOf returns how many effects each task had. Without a database, each run of a handler is an effect.
func effectsOf(ctx context.Context, sys system, l *ledger) (map[int64]int, error) {
	on, ok := sys.(recorded)
	if !ok {
		return l.times(), nil
	}
	all := map[int64]int{}
	err := onDatabase(ctx, on.database(), func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT number, count(*) FROM effects GROUP BY number")
		if err != nil {
			return err
		}
		var number, n int64
		_, err = pgx.ForEachRow(rows, []any{&number, &n}, func() error {
			all[number] = int(n)
			return nil
		})
		return err
	})
	return all, err
}
