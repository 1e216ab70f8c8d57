package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// Several processes receive the same messages, and the work of each task takes longer than its lease. It is done once
// and completed once. If a process dies, its lease expires.
func TestScheduleLeases(t *testing.T) {
	t.Parallel()
	const count, processes = 4, 3
	// On a slow machine, a statement may wait several seconds for SQLite's other writers.
	const lease = 6 * time.Second
	eachDriver(t, func(t *testing.T, db businessDB) {
		t.Parallel()
		s := newStore(t, db, nil, schedule.Config{})
		db.mustExec(t, "CREATE TABLE effects (id VARCHAR(255) NOT NULL)")
		past := time.Now().Add(-time.Second)
		var running [count]atomic.Int32
		var calls, snoozes, skips atomic.Int32
		work := func(ctx context.Context, d *amqpx.Delivery, key string) (txFunc, error) {
			n := d.Body[0]
			calls.Add(1)
			if running[n].Add(1) != 1 {
				t.Errorf("two handlers are working on task %s at the same time, want one", d.ID)
			}
			defer running[n].Add(-1)
			if created := taskOf(t, s, d.ID).CreatedAt.UnixMilli(); key != fmt.Sprintf("%s.%d.q", d.ID, created) {
				t.Errorf("got key %s, want %s.%d.q (id, creation time and queue)", key, d.ID, created)
			}
			select {
			case <-time.After(lease + time.Second):
			case <-ctx.Done():
				return nil, fmt.Errorf("the lease: %w", context.Cause(ctx))
			}
			return func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
				_, err := tx.ExecContext(ctx, db.bind("INSERT INTO effects (id) VALUES (?)"), d.ID)
				return err
			}, nil
		}
		onSkip := schedule.OnSkip(func(context.Context, *amqpx.Delivery, schedule.SkipReason) { skips.Add(1) })
		handle := db.leaseHandler(work, schedule.WithLease(lease), onSkip)
		delivery := func(n int) *amqpx.Delivery {
			return &amqpx.Delivery{ID: fmt.Sprint("t", n), Version: 1, Queue: "q", Attempt: 1, MaxAttempts: 3, DueAt: past, Body: []byte{byte(n)}}
		}
		for n := range count {
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: fmt.Sprint("t", n), Queue: "q", DeliverAt: past}))
		}
		for i, err := range together(count*processes, func(i int) error {
			for {
				err := handle(t.Context(), delivery(i%count))
				if !amqpx.IsSnoozed(err) {
					return err
				}
				snoozes.Add(1)
				<-time.After(500 * time.Millisecond)
			}
		}) {
			if err != nil {
				t.Errorf("process %d: got %v, want no error", i, err)
			}
		}
		if calls.Load() != count || skips.Load() != count*(processes-1) || snoozes.Load() == 0 {
			t.Errorf("%d calls, %d skips and %d snoozes, want %d, %d and more than 0",
				calls.Load(), skips.Load(), snoozes.Load(), count, count*(processes-1))
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM effects"); n != count {
			t.Errorf("%d effects, want %d", n, count)
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'done' AND attempts = 0"); n != count {
			t.Errorf("%d tasks are done without a failure, want %d", n, count)
		}

		// The process that works on this task dies.
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "t0", Queue: "q", DeliverAt: past, Replace: true}))
		dying := delivery(0)
		dying.Version = 2
		ctx, die := context.WithCancelCause(t.Context())
		dead := db.leaseHandler(func(context.Context, *amqpx.Delivery, string) (txFunc, error) {
			db.mustExec(t, "UPDATE rabbitdelay_effects SET lease_until = lease_until - 60000 WHERE version = 2")
			die(errors.New("killed")) // the statements below replace what the handler records
			return nil, errors.New("killed")
		})
		_ = dead(ctx, dying)
		db.mustExec(t, "UPDATE rabbitdelay_effects SET lease_token = 'dead', attempts = 1 WHERE version = 2")
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'running' WHERE id = 't0'")
		if err := s.Cancel(t.Context(), schedule.NoTx, "t0"); !errors.Is(err, schedule.ErrStatus) {
			t.Errorf("cancel of a running task: got %v, want schedule.ErrStatus", err)
		}
		again := db.leaseHandler(func(context.Context, *amqpx.Delivery, string) (txFunc, error) { return nil, nil })
		suite.MustSucceed(t, again(t.Context(), dying))
		if got := taskOf(t, s, "t0"); got.Status != schedule.StatusDone || got.Attempts != 1 {
			t.Errorf("after the process died: got %+v, want Status = schedule.StatusDone and Attempts = 1", got)
		}
	})
}

// Leased work that fails while another task of its unique key is pending keeps its retry if the other task is due
// later. If the other task is due first, the failed one is cancelled, and its error names the other task and the key.
func TestScheduleLeaseFailsWithAnotherTaskOfItsKey(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		for name, c := range map[string]struct {
			later  time.Duration // when the other task is due
			status schedule.Status
		}{
			"later":   {time.Hour, schedule.StatusDone},
			"earlier": {time.Second, schedule.StatusCancelled}, // a retry of a Delivery that a test created is minutes later
		} {
			past := time.Now().Add(-time.Second).Truncate(time.Millisecond)
			_, err := s.ScheduleUnique(t.Context(), schedule.NoTx, schedule.Task{ID: name, UniqueKey: name, Queue: "q", DeliverAt: past}, schedule.Unique{})
			suite.MustSucceed(t, err)
			away := errors.New("provider is away")
			work := func(ctx context.Context, d *amqpx.Delivery, _ string) (txFunc, error) {
				if d.Attempt > 1 {
					return nil, nil
				}
				next := schedule.Task{ID: name + "-next", UniqueKey: name, Queue: "q", DeliverAt: time.Now().Add(c.later)}
				_, err := s.ScheduleUnique(ctx, schedule.NoTx, next, schedule.Unique{})
				return nil, errors.Join(err, away)
			}
			handle := db.leaseHandler(work)
			d := &amqpx.Delivery{ID: name, Version: 1, Queue: "q", Attempt: 1, MaxAttempts: 3, DueAt: past}
			if err := handle(t.Context(), d); !errors.Is(err, away) {
				t.Errorf("%s: the first attempt: got error %v, want %v", name, err, away)
			}
			again := *d
			again.Attempt = 2
			suite.MustSucceed(t, handle(t.Context(), &again))
			got := taskOf(t, s, name)
			if got.Status != c.status || got.Attempts != 1 {
				t.Errorf("%s: the task is %s after %d failures, want %s after 1", name, got.Status, got.Attempts, c.status)
			}
			for _, want := range []string{away.Error(), name + "-next", "unique key " + name} {
				if c.status == schedule.StatusCancelled && !strings.Contains(got.LastError, want) {
					t.Errorf("%s: LastError is %q, want it to contain %q", name, got.LastError, want)
				}
			}
			if next := taskOf(t, s, name+"-next"); next.Status != schedule.StatusPending {
				t.Errorf("%s: the other task is %s, want pending", name, next.Status)
			}
		}
	})
}
