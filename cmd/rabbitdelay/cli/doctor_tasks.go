package cli

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// A working relay sends a task long before unsentGrace after its due instant.
// Handlers get the same time as the relay allows before it sends again.
const (
	unsentGrace = 10 * time.Second
	maxOverdue  = 1000 // tasks that are looked at
)

// overdueTasks sums up the pending tasks that are due.
func overdueTasks(ctx context.Context, c *config.Config) (*doctor.Tasks, error) {
	db, err := openTasksDB(c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }() // nothing is under way
	if err := checkTasks(ctx, db); err != nil {
		return nil, err
	}
	store, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	unhandledSince := now.Add(-schedule.Config{}.WithDefaults().Grace)
	sum := &doctor.Tasks{Now: now}
	n := 0
	filter := schedule.Filter{Status: schedule.StatusPending, DueTo: now.Add(-unsentGrace), Limit: maxOverdue, WithoutBody: true}
	for task, err := range store.List(ctx, nil, filter) { // the first due first
		if err != nil {
			return nil, err
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
	sum.More = n == maxOverdue
	return sum, nil
}
