package status

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// A working relay sends a task long before unsentGrace after its due instant.
// Handlers get the same time as the relay allows before it sends again.
const (
	unsentGrace = 10 * time.Second
	maxLate     = 1000 // tasks that are looked at
)

// Late sums up the pending tasks that should have been sent, or handled.
func Late(ctx context.Context, store *schedule.Store, now time.Time) (doctor.Tasks, error) {
	unhandledSince := now.Add(-schedule.Config{}.WithDefaults().Grace)
	sum := doctor.Tasks{Now: now}
	n := 0
	filter := schedule.Filter{Status: schedule.StatusPending, DueTo: now.Add(-unsentGrace), Limit: maxLate, WithoutBody: true}
	for task, err := range store.List(ctx, nil, filter) { // the first due first
		if err != nil {
			return doctor.Tasks{}, err
		}
		n++
		switch {
		case task.SentAt.IsZero():
			if sum.Unsent++; sum.Unsent == 1 {
				sum.OldestUnsent = task.DeliverAt
			}
			if task.LastError != "" {
				sum.LastError = task.LastError
			}
		case task.DeliverAt.Before(unhandledSince):
			if sum.Unhandled++; sum.Unhandled == 1 {
				sum.OldestUnhandled = task.DeliverAt
			}
		}
	}
	sum.More = n == maxLate
	return sum, nil
}

// readTasks reads the figures of a database.
func readTasks(ctx context.Context, store *schedule.Store, now time.Time) (*Tasks, error) {
	t := &Tasks{Counts: []TaskCount{}}
	counts, err := store.Count(ctx, nil, schedule.Filter{})
	if err != nil {
		return nil, err
	}
	for _, c := range counts {
		t.Counts = append(t.Counts, TaskCount(c))
	}
	if t.late, err = Late(ctx, store, now); err != nil {
		return nil, err
	}
	t.Unsent, t.Unhandled, t.More = t.late.Unsent, t.late.Unhandled, t.late.More
	for task, err := range store.List(ctx, nil, schedule.Filter{Status: schedule.StatusPending, DueTo: now, Limit: 1, WithoutBody: true}) {
		if err != nil {
			return nil, err
		}
		t.Overdue = &Overdue{
			ID: task.ID, Destination: destination(task), Due: task.DeliverAt, Sent: !task.SentAt.IsZero(), Attempts: task.Attempts, LastError: task.LastError,
		}
	}
	for _, within := range soon {
		counts, err := store.Count(ctx, nil, schedule.Filter{Status: schedule.StatusPending, DueFrom: now, DueTo: now.Add(within)})
		if err != nil {
			return nil, err
		}
		var n int64
		for _, c := range counts {
			n += c.Count
		}
		t.due = append(t.due, n)
	}
	return t, nil
}

func destination(t schedule.Task) string {
	if t.Queue != "" {
		return t.Queue
	}
	return t.Exchange + ":" + t.RoutingKey
}
