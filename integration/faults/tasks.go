package faults

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// taskQueue is the destination of tasks.
const taskQueue = "faults.tasks"

// tasks schedules tasks at a constant rate. It then cancels, reschedules or runs three out of four. The ledger records
// a cancelled task as a message that was not sent.
type tasks struct {
	store  *schedule.Store
	db     *sql.DB
	ledger *Ledger
	rate   float64 // per second

	end func() // stops the relay
}

// startTasks creates the tables and runs the relay until end is called.
func startTasks(ctx context.Context, db *sql.DB, sender schedule.Sender, ledger *Ledger, rate float64) (*tasks, error) {
	if err := schedule.Migrate(ctx, db); err != nil {
		return nil, err
	}
	store, err := schedule.New(db, sender, schedule.Config{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) }) // the ledger shows if it failed
	return &tasks{store: store, db: db, ledger: ledger, rate: rate, end: func() { cancel(); running.Wait() }}, nil
}

// run schedules tasks until ctx ends, and returns when every change has its outcome.
func (t *tasks) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ticker := time.NewTicker(time.Duration(float64(time.Second) / t.rate))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			running.Go(t.one)
		}
	}
}

func (t *tasks) one() {
	s := Sent{ID: uuid.NewString(), Began: time.Now()}
	s.Due = s.Began.Truncate(time.Millisecond).Add(3*time.Second + rand.N(MaxDelay-3*time.Second).Truncate(time.Millisecond))
	// Start no change once a handler may have started.
	ctx, cancel := context.WithDeadline(context.Background(), s.Due.Add(-500*time.Millisecond))
	defer cancel()
	if err := t.store.Schedule(ctx, t.db, schedule.Task{ID: s.ID, Queue: taskQueue, DeliverAt: s.Due}); err != nil {
		s.Outcome = Unknown // the commit may have succeeded and only its answer been lost
	} else {
		wait(ctx, rand.N(2*time.Second))
		t.change(ctx, &s)
	}
	s.Ended = time.Now()
	t.ledger.Record(s)
}

// change changes a task and its expected outcome. After an error, either outcome is possible.
func (t *tasks) change(ctx context.Context, s *Sent) {
	switch rand.IntN(4) {
	case 0:
		s.Outcome = NotSent
		if err := t.store.Cancel(ctx, t.db, s.ID); err != nil {
			s.Outcome = Unknown
		}
	case 1:
		due := s.Due.Add(rand.N(4*time.Second).Truncate(time.Millisecond) - 2*time.Second)
		if err := t.store.Reschedule(ctx, t.db, s.ID, due); err == nil || due.Before(s.Due) {
			s.Due = due
		}
	case 2:
		s.Due = time.Now().Truncate(time.Millisecond)
		_ = t.store.RunNow(ctx, t.db, s.ID) // if this fails, the task is sent at its original due time
	}
}
