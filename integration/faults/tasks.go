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

// tasks are scheduled at a steady rate; three in four are then cancelled, moved or fired. In the
// ledger one that was cancelled is a message that was not sent.
type tasks struct {
	store  *schedule.Store
	db     *sql.DB
	ledger *Ledger
	rate   float64 // per second

	end func() // of the relay
}

// startTasks makes the tables and runs the relay until end is called.
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
	running.Go(func() { _ = store.Run(ctx) }) // the ledger shows what it did not do
	return &tasks{store: store, db: db, ledger: ledger, rate: rate, end: func() { cancel(); running.Wait() }}, nil
}

// run schedules until ctx ends, and returns when every change has its outcome.
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
	// No change is begun when a handler may have begun.
	ctx, cancel := context.WithDeadline(context.Background(), s.Due.Add(-500*time.Millisecond))
	defer cancel()
	if err := t.store.Schedule(ctx, t.db, schedule.Task{ID: s.ID, Queue: taskQueue, DeliverAt: s.Due}); err != nil {
		s.Outcome = Unknown // the commit's answer may be what was lost
	} else {
		wait(ctx, rand.N(2*time.Second))
		t.change(ctx, &s)
	}
	s.Ended = time.Now()
	t.ledger.Record(s)
}

// change changes a task, and what is to become of it. After an error either may.
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
		_ = t.store.FireNow(ctx, t.db, s.ID) // or it comes when it was due
	}
}
