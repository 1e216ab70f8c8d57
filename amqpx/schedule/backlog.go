package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Backlog is how much waits in a table, in counts that cost little however many
// tasks there are.
type Backlog struct {
	// At is the instant for which it was read, by the database's clock.
	At time.Time
	// Oldest is the due instant of the pending task that was due first; zero if none is
	// due.
	Oldest time.Time
	// Overdue counts the pending tasks that are due, sent or not.
	Overdue int64
	// Unsent counts those that Run should have sent by now: pending, due within
	// Config.Horizon, and never given to the broker in their present version.
	Unsent int64
	// Within counts the pending tasks between the horizons that were asked for: due
	// after the one before (after At for the first), and not after this one; the last
	// element those after all of them.
	Within []int64
}

// mostLanes bounds the destinations whose unsent tasks Backlog counts.
const mostLanes = 1000

// Backlog reads how much waits. horizons ascend. No count goes beyond most, 1 or
// more; a count of most means that many or more. So each count reads at most so many
// entries of an index. Unsent tasks are counted of up to 1000 destinations.
func (s *Store) Backlog(ctx context.Context, horizons []time.Duration, most int64) (Backlog, error) {
	b, err := s.readBacklog(ctx, horizons, most)
	if err != nil {
		return Backlog{}, fmt.Errorf("reading the backlog: %w", sqldb.Explain(err))
	}
	return b, nil
}

func (s *Store) readBacklog(ctx context.Context, horizons []time.Duration, most int64) (b Backlog, err error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return b, err
	}
	now := s.now().UnixMilli()
	b.At = time.UnixMilli(now)
	pending := " FROM rabbitdelay_tasks WHERE status = 'pending'"
	if d == MySQL {
		pending = " FROM rabbitdelay_tasks FORCE INDEX (rabbitdelay_tasks_status) WHERE status = 'pending'"
	}
	var oldest int64
	err = s.db.QueryRowContext(ctx, d.Bind("SELECT due_at"+pending+" AND due_at <= ? ORDER BY due_at LIMIT 1"), now).Scan(&oldest)
	if err == nil {
		b.Oldest = time.UnixMilli(oldest)
	} else if !errors.Is(err, sql.ErrNoRows) {
		return b, err
	}
	count := func(after, until int64) (n int64, err error) {
		query := "SELECT COUNT(*) FROM (SELECT 1" + pending + " AND due_at > ? AND due_at <= ? LIMIT ?) AS counted"
		err = s.db.QueryRowContext(ctx, d.Bind(query), after, until, most).Scan(&n)
		return n, err
	}
	if b.Overdue, err = count(-maxDue, now); err != nil {
		return b, err
	}
	after := now
	for i := range len(horizons) + 1 {
		until := int64(maxDue)
		if i < len(horizons) {
			until = now + horizons[i].Milliseconds()
		}
		n, err := count(after, until)
		if err != nil {
			return b, err
		}
		b.Within, after = append(b.Within, n), until
	}
	b.Unsent, err = s.countUnsent(ctx, d, now+s.cfg.Horizon.Milliseconds(), most)
	return b, err
}

// countUnsent counts the tasks that a claim would find, lane by lane as the index has
// them.
func (s *Store) countUnsent(ctx context.Context, d Dialect, until, most int64) (total int64, err error) {
	lanes, err := s.look(ctx, toSend, until)
	if err != nil {
		return 0, err
	}
	query := "SELECT COUNT(*) FROM (SELECT 1 FROM " + toSend.table(d) + " WHERE " + toSend.rows() +
		" AND queue = ? AND exchange = ? AND " + toSend.instant(d) + " <= ? ORDER BY " + toSend.instant(d) + " LIMIT ?) AS counted" // by the index
	for _, l := range lanes[:min(len(lanes), mostLanes)] {
		var n int64
		if err := s.db.QueryRowContext(ctx, d.Bind(query), l.queue, l.exchange, until, most-total).Scan(&n); err != nil {
			return 0, err
		}
		if total += n; total >= most {
			break
		}
	}
	return total, nil
}
