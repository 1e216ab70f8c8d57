package taskview

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Effect is the record of a task's attempts and effect by the handler of one queue. The effect is recorded for a task
// that was sent to an exchange, and for work under a lease. For other tasks, the record contains only the attempts that
// were recorded before they ran.
type Effect struct {
	Version    int64     // the version of the task
	Queue      string    // the handler's queue
	DoneAt     time.Time // when the effect was committed; zero if it was not
	Attempts   int       // number of attempts that were recorded before they ran
	LeaseUntil time.Time // when the lease of an attempt ends; zero if there is none
}

// Effects returns the records that handlers have written about a task, sorted by version and queue.
func (s *Store) Effects(ctx context.Context, id string) ([]Effect, error) {
	return reading(ctx, s, "reading the effects of task "+id, func(c rows.Conn) (list []Effect, err error) {
		found, err := c.Effects(ctx, id)
		for _, e := range found {
			list = append(list, Effect(e))
		}
		return list, err
	})
}

// Tags returns the first limit tags that tasks have, in sort order.
func (s *Store) Tags(ctx context.Context, limit int) ([]string, error) {
	return reading(ctx, s, "reading tags", func(c rows.Conn) ([]string, error) { return c.TagNames(ctx, limit) })
}
