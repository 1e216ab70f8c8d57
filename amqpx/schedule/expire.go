package schedule

import (
	"context"
	"database/sql"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// unexpired returns the condition of a row whose time is not over by the database's
// clock, or the instant given where that is this process's. Of a row that is due at 0,
// which is at once, it counts from when that was written. Nothing is added up that could
// overflow.
func unexpired(d Dialect, now int64) string {
	clock := strconv.FormatInt(now, 10)
	if !ownClock(d) {
		clock = strings.TrimPrefix(clockQueries[d], "SELECT ")
	}
	return "(expires_after IS NULL OR expires_after > " + clock + " - CASE WHEN due_at = 0 THEN created_at ELSE due_at END)"
}

// expiresAfter returns the column of a task's ExpiresAfter, which rounds up.
func expiresAfter(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	ms := d.Milliseconds()
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

// expiresAfterOf returns the duration of the column, at most what a duration can hold.
func expiresAfterOf(ms sql.NullInt64) time.Duration {
	return time.Duration(min(ms.Int64, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// expired reports whether the row that the message stands for is pending and its time
// is over.
func (f found) expired(d *amqpx.Delivery) bool {
	return f.status == StatusPending && f.isOf(d) && f.over
}

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
		from := c.DeliverAt
		if from.UnixMilli() == 0 {
			from = c.CreatedAt
		}
		if c.ExpiresAfter > 0 && now.Sub(from) >= c.ExpiresAfter {
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
