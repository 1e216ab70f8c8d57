package schedule

import (
	"context"
	"database/sql"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Effect is what the handler of one queue has recorded about a task: of a task to an
// exchange its effect, of others only attempts that are recorded before they run.
type Effect struct {
	Version    int64     // the task's
	Queue      string    // whose handler it is
	DoneAt     time.Time // when the effect was committed; zero before
	Attempts   int       // that were recorded before they ran
	LeaseUntil time.Time // until then an attempt has the task to itself; zero without one
}

// Effects reads what handlers have recorded about a task, by version and queue.
func (s *Store) Effects(ctx context.Context, ex Executor, id string) ([]Effect, error) {
	var list []Effect
	const query = "SELECT version, queue, done_at, attempts, lease_until FROM rabbitdelay_effects WHERE task_id = ? ORDER BY version, queue"
	err := s.query(ctx, ex, query, []any{id}, func(rows sqldb.Rows) error {
		var e Effect
		var done sql.NullInt64
		var lease int64
		if err := rows.Scan(&e.Version, &e.Queue, &done, &e.Attempts, &lease); err != nil {
			return err
		}
		if done.Valid {
			e.DoneAt = time.UnixMilli(done.Int64)
		}
		if lease > 0 {
			e.LeaseUntil = time.UnixMilli(lease)
		}
		list = append(list, e)
		return nil
	})
	return list, err
}
