package taskview

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// SentTasks describes pending tasks whose messages should be on the broker.
type SentTasks struct {
	Tasks int64
	// ResendFrom and ResendTo are the earliest and the latest time at which the relay sends one of the tasks again, if
	// it finds that the message is lost: the range of TaskRow.ResendAt. They are zero if there are no tasks.
	ResendFrom, ResendTo time.Time
}

// SentAhead counts the pending tasks that are due later than now + ahead and that were sent earlier than now - age, by
// the database's clock. Each of their messages is still in a delay queue, unless the broker lost it, so a broker that
// has fewer messages has lost some. At most limit tasks are counted, those that are due first. It returns ErrConfig if
// the limit is not positive.
func (s *Store) SentAhead(ctx context.Context, ahead, age time.Duration, limit int64) (SentTasks, error) {
	if limit < 1 {
		return SentTasks{}, fmt.Errorf("%w: counting sent tasks: limit is %d; expected 1 or more", schedule.ErrConfig, limit)
	}
	return reading(ctx, s, "counting sent tasks", func(c rows.Conn) (SentTasks, error) {
		now, err := c.Clock(ctx)
		if err != nil {
			return SentTasks{}, err
		}
		found, err := c.SentAhead(ctx, now.Add(ahead).UnixMilli(), now.Add(-age).UnixMilli(), limit)
		if err != nil || found.Tasks == 0 {
			return SentTasks{}, err
		}
		return SentTasks{found.Tasks, time.UnixMilli(found.First).UTC(), time.UnixMilli(found.Last).UTC()}, nil
	})
}

// CountRetried counts the pending tasks that are due and have had a failed attempt, which means that they are waiting
// for a retry. It reads at most limit of the tasks that are due, beginning with the earliest due time.
func (s *Store) CountRetried(ctx context.Context, limit int64) (int64, error) {
	return reading(ctx, s, "counting tasks that wait for a retry", func(c rows.Conn) (int64, error) {
		now, err := c.Clock(ctx)
		if err != nil {
			return 0, err
		}
		return c.CountRetried(ctx, now.UnixMilli(), limit)
	})
}
