package schedule

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// unexpired is the condition of a row whose time is not over at the instant of the
// placeholder.
const unexpired = "(expires_after IS NULL OR due_at + expires_after > ?)"

// expiresAfter is the column of a task's ExpiresAfter.
func expiresAfter(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return (d + time.Millisecond - 1).Milliseconds()
}

// expired tells whether the row that the message stands for is pending and its time
// is over.
func (f found) expired(d *amqpx.Delivery, now int64) bool {
	return f.status == StatusPending && f.version == d.Version && f.over(now)
}

// over tells whether the time of the row is over.
func (f found) over(now int64) bool { return f.after.Valid && f.due+f.after.Int64 <= now }

// expire ends a task whose message came too late.
func expire(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery, now int64) error {
	_, err := tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET status = 'expired', finished_at = ?, updated_at = ? WHERE id = ? AND version = ? AND status = 'pending'"),
		now, now, d.ID, d.Version)
	return err
}

// dropExpired ends the claimed tasks whose time is over, and returns the others.
func (s *Store) dropExpired(ctx context.Context, list []*claimed) ([]*claimed, error) {
	now := s.now()
	var over, left []*claimed
	for _, c := range list {
		if c.ExpiresAfter > 0 && !c.DeliverAt.Add(c.ExpiresAfter).After(now) {
			over = append(over, c)
		} else {
			left = append(left, c)
		}
	}
	if len(over) == 0 {
		return left, nil
	}
	return left, s.settle(ctx, over, "status = 'expired', finished_at = ?, updated_at = ?, claimed_until = 0",
		" AND "+stillPending, now.UnixMilli(), now.UnixMilli())
}
