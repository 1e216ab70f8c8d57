package cli

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// overdueTasks sums up the pending tasks that are due.
func overdueTasks(ctx context.Context, c *config.Config) (*doctor.Tasks, error) {
	db, err := openTasksDB(c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }() // nothing is under way
	store, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		return nil, err
	}
	if err := checkTasks(ctx, store); err != nil {
		return nil, err
	}
	sum, err := status.Late(ctx, store, time.Now())
	return &sum, err
}
