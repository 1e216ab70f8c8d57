package bench

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// write schedules n tasks. The function late returns how long after now the i-th task is due.
func write(ctx context.Context, store *schedule.Store, n int, task schedule.Task, late delayFor) error {
	for written := 0; written < n; written += batchSize {
		list := make([]schedule.Task, min(batchSize, n-written))
		for i := range list {
			list[i] = task
			list[i].ID, list[i].DeliverAt = uuid.NewString(), time.Now().Add(late(written+i))
		}
		if err := store.ScheduleBatch(ctx, schedule.NoTx, list); err != nil {
			return err
		}
	}
	return nil
}

// scheduleBatch writes n tasks.
func scheduleBatch(n int) work {
	return func(ctx context.Context, t *turn) error {
		store, err := schedule.New(t.db, nil, schedule.Config{})
		if err != nil {
			return err
		}
		err = t.measure(n, func() error {
			return write(ctx, store, n, schedule.Task{Queue: t.c.queue, Body: body(t.o.Body, 0)}, anyDelay)
		})
		return errors.Join(err, t.empty(ctx, "rabbitdelay_tasks"))
	}
}

// Sizes of cases with unique keys.
const (
	writers    = 16
	uniqueKeys = 100 // number of unique keys that the tasks share
)

// scheduleEach writes n tasks one by one from several goroutines, each in a separate transaction.
func scheduleEach(n int, one func(ctx context.Context, store *schedule.Store, i int, task schedule.Task) error) work {
	return func(ctx context.Context, t *turn) error {
		store, err := schedule.New(t.db, nil, schedule.Config{})
		if err != nil {
			return err
		}
		err = t.measure(n, func() error {
			all, ctx := errgroup.WithContext(ctx)
			for w := range writers {
				all.Go(func() error {
					for i := w; i < n; i += writers {
						task := schedule.Task{ID: uuid.NewString(), Queue: t.c.queue, Body: body(t.o.Body, 0), DeliverAt: time.Now().Add(anyDelay(i))}
						if err := one(ctx, store, i, task); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return all.Wait()
		})
		return errors.Join(err, t.empty(ctx, "rabbitdelay_tasks"))
	}
}

func plainly(ctx context.Context, store *schedule.Store, _ int, task schedule.Task) error {
	return store.Schedule(ctx, schedule.NoTx, task)
}

// fresh schedules a task with a unique key that no other task has.
func fresh(ctx context.Context, store *schedule.Store, _ int, task schedule.Task) error {
	task.UniqueKey = task.ID
	return scheduleUnique(ctx, store, task)
}

// pushBack schedules a task with one of uniqueKeys keys, due in an hour. It thus postpones the pending task of the same
// key.
func pushBack(ctx context.Context, store *schedule.Store, i int, task schedule.Task) error {
	task.UniqueKey, task.DeliverAt = strconv.Itoa(i%uniqueKeys), time.Now().Add(time.Hour)
	return scheduleUnique(ctx, store, task)
}

func scheduleUnique(ctx context.Context, store *schedule.Store, task schedule.Task) error {
	_, err := store.ScheduleUnique(ctx, schedule.NoTx, task, schedule.Unique{OnConflict: schedule.PushBackPending, MaxWait: 48 * time.Hour})
	return err
}

// debounce schedules tasks with a few unique keys at the measured rate. Each task postpones the previous one of its
// key.
func debounce(rate int) beside {
	return func(ctx context.Context, t *turn, store *schedule.Store) (end func() error, err error) {
		during, stop := context.WithCancel(ctx)
		row := t.s.Find("a stream of unique keys", number(float64(rate))+" tasks/s asked for", false)
		var all errgroup.Group
		var merged atomic.Int64
		began := time.Now()
		for w := range writers {
			all.Go(func() error {
				for i := w; ; i += writers {
					select {
					case <-during.Done():
						return nil
					case <-time.After(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate)))):
					}
					task := schedule.Task{ID: uuid.NewString(), Queue: t.c.queue, Body: body(t.o.Body, 0)}
					if err := pushBack(ctx, store, i, task); err != nil {
						return err
					}
					merged.Add(1)
				}
			})
		}
		return func() error {
			stop()
			err := all.Wait()
			row.Add(metricRate, "tasks/s", float64(merged.Load())/time.Since(began).Seconds())
			return err
		}, nil
	}
}

// relay sends n tasks that have already been written.
func relay(n int) work {
	return func(ctx context.Context, t *turn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var relayed atomic.Int64
		store, err := schedule.New(t.db, t.c.Client, schedule.Config{Hooks: schedule.Hooks{
			Relayed: func(k int, _ bool) {
				if relayed.Add(int64(k)) >= int64(n) {
					cancel()
				}
			},
		}})
		if err == nil {
			err = write(ctx, store, n, schedule.Task{Queue: t.c.queue, Body: body(t.o.Body, 0)}, anyDelay)
		}
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		err = t.measure(n, func() error {
			go func() {
				ended <- store.Run(ctx)
				cancel()
			}()
			<-ctx.Done()
			return nil
		})
		return errors.Join(err, <-ended, t.empty(ctx, "rabbitdelay_tasks"))
	}
}

// beside starts background work that runs while tasks are measured.
type beside func(ctx context.Context, t *turn, store *schedule.Store) (end func() error, err error)

// alone starts no background work.
func alone(context.Context, *turn, *schedule.Store) (end func() error, err error) {
	return func() error { return nil }, nil
}

// move reschedules n other tasks by an hour. It first schedules them beyond the relay's horizon.
func move(n int) beside {
	return func(ctx context.Context, t *turn, store *schedule.Store) (end func() error, err error) {
		late := func(i int) time.Duration { return 48*time.Hour + anyDelay(i) }
		if err := write(ctx, store, n, schedule.Task{Queue: "moved"}, late); err != nil {
			return nil, err
		}
		row := t.s.Find("a move by an hour", number(float64(n))+" tasks", false)
		ended := make(chan error, 1)
		go func() {
			began := time.Now()
			done, err := store.Bulk(context.WithoutCancel(ctx), schedule.Filter{Queue: "moved"}, schedule.BulkRescheduleBy(time.Hour), schedule.BulkOptions{})
			took := time.Since(began).Seconds()
			row.Add("took", "s", took)
			row.Add(metricRate, "tasks/s", float64(n)/took)
			row.Add("longest transaction", "ms", 1000*done.Longest.Seconds()) // upper limit of the time that locks are held
			ended <- err
		}()
		return func() error { return <-ended }, nil
	}
}

// backlog is the number of overdue tasks for each failing destination.
const backlog = 3000

// trouble declares a full queue and a queue that is exclusive to another connection. It schedules overdue tasks to each
// of them and to an exchange that does not exist.
func trouble(ctx context.Context, t *turn, store *schedule.Store) (end func() error, err error) {
	full, exclusive := t.c.queue+".full", t.c.queue+".exclusive"
	ch, err := t.c.conn.Channel()
	if err != nil {
		return nil, err
	}
	end = func() error {
		_, err := ch.QueueDelete(full, false, false, false)
		_, eerr := ch.QueueDelete(exclusive, false, false, false)
		return errors.Join(err, eerr, ch.Close())
	}
	_, err = ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err == nil {
		err = ch.PublishWithContext(ctx, "", full, false, false, amqp.Publishing{})
	}
	if err == nil {
		_, err = ch.QueueDeclare(exclusive, false, false, true, false, nil)
	}
	overdue := func(int) time.Duration { return -time.Hour }
	for _, task := range []schedule.Task{{Queue: full}, {Queue: exclusive}, {Exchange: t.c.queue + ".missing"}} {
		if err == nil {
			err = write(ctx, store, backlog, task, overdue)
		}
	}
	if err != nil {
		return nil, joined(err, end())
	}
	return end, nil
}

// Number of tasks and rate limit in the benchmark flood.
const (
	flooded   = 100_000
	rateLimit = 1000 // tasks per second
)

// flood schedules overdue tasks to a queue with a rate limit and measures the rate at which they arrive.
func flood(ctx context.Context, t *turn, store *schedule.Store) (end func() error, err error) {
	mail := t.c.queue + ".mail"
	ch, err := t.c.conn.Channel()
	if err != nil {
		return nil, err
	}
	err = store.SetRateLimit(ctx, schedule.NoTx, schedule.RateLimit{Queue: mail, PerSecond: rateLimit})
	if err == nil {
		err = write(ctx, store, flooded, schedule.Task{Queue: mail, Body: body(t.o.Body, 0)}, func(int) time.Duration { return -time.Hour })
	}
	if err != nil {
		return nil, joined(err, ch.Close())
	}
	row := t.s.Find("a flood at a rate limit", number(rateLimit)+" tasks/s", false)
	began := time.Now()
	return func() error {
		q, err := ch.QueueDeclarePassive(mail, true, false, false, false, nil)
		row.Add(metricRate, "tasks/s", float64(q.Messages)/time.Since(began).Seconds())
		if err == nil {
			_, err = ch.QueueDelete(mail, false, false, false)
		}
		return errors.Join(err, store.SetRateLimit(context.WithoutCancel(ctx), schedule.NoTx, schedule.RateLimit{Queue: mail}), ch.Close())
	}, nil
}
