package schedule

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// attempt is an attempt that was recorded before it ran, so that it counts also if
// it ends its process. Its row in rabbitdelay_effects has its token until there is
// an outcome.
type attempt struct {
	task    string
	created int64
	version int64
	queue   string
	token   string

	lease time.Duration // 0: it holds a row of the task locked instead
	clock time.Time     // the database's, at begun
	begun time.Time

	number  int    // of this attempt
	before  int    // attempts on record before it
	release func() // of the lane for suspects; nil: it is not in it
}

// begin records the attempt of a message that the broker delivered before: the
// process may have ended with it. nil without an error: the fence will say why
// there is nothing to do.
func (h *handler) begin(ctx context.Context, d *amqpx.Delivery) (*attempt, error) {
	dialect, err := h.dialect.Resolve(ctx, h.db)
	if err != nil {
		return nil, err
	}
	row, err := look(ctx, h.db, dialect, d.ID, h.now(), "")
	if err != nil || !row.open(d) {
		return nil, err
	}
	a := &attempt{task: d.ID, created: row.created, version: d.Version, queue: d.Queue, token: rand.Text()}
	err = h.enter(ctx, a, d)
	if _, settled := errors.AsType[*skipError](err); settled {
		return nil, nil //nolint:nilnil // the fence says it
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// enter claims the attempt, in the lane for suspects where it has to be.
func (h *handler) enter(ctx context.Context, a *attempt, d *amqpx.Delivery) error {
	dialect, err := h.dialect.Resolve(ctx, h.db)
	if err != nil {
		return err
	}
	err = h.claim(ctx, dialect, a, d)
	if errors.Is(err, errSuspect) {
		if a.release, err = suspectLane(ctx); err == nil {
			err = h.claim(ctx, dialect, a, d)
		}
	}
	if err != nil {
		a.end()
	}
	return err
}

// open tells whether the message may still have an effect, as far as the task's
// row says.
func (f found) open(d *amqpx.Delivery) bool {
	return f.isOf(d) && (f.status == StatusPending || !f.toQueue && f.status != StatusCancelled && f.status != StatusExpired)
}

var errSuspect = errors.New("an attempt before this one ended without an outcome")

// effectRow is the key of a row of rabbitdelay_effects; see attempt.key.
const effectRow = " WHERE task_id = ? AND created_at = ? AND version = ? AND queue = ?"

func (a *attempt) key() []any { return []any{a.task, a.created, a.version, a.queue} }

// claim counts the attempt, and takes the lease if it is to have one. Errors:
// *skipError, *heldError, errSuspect for an attempt that may run only in the lane
// for suspects, *PoisonError when there were enough.
func (h *handler) claim(ctx context.Context, dialect Dialect, a *attempt, d *amqpx.Delivery) error {
	var over error // is committed
	err := sqldb.Transact(ctx, h.db, readCommitted(dialect), func(tx sqldb.Tx) error {
		over = nil
		a.begun = time.Now()
		var err error
		if a.clock, err = h.clock(ctx, tx, dialect); err != nil {
			return err
		}
		if a.lease > 0 {
			if a.created, err = h.startLease(ctx, tx, dialect, d, a.clock.UnixMilli()); err != nil {
				if skip, ok := errors.AsType[*skipError](err); ok && skip.reason == SkipExpired {
					over = skip
					return nil
				}
				return err
			}
		}
		earlier, err := a.lock(ctx, tx, dialect)
		if err != nil {
			return err
		}
		a.before = earlier.attempts
		switch rest := time.UnixMilli(earlier.lease).Sub(a.clock); {
		case earlier.done:
			return &skipError{SkipDuplicate}
		case rest > 0:
			return &heldError{rest}
		case earlier.token != "" && a.release == nil:
			return errSuspect
		case d.MaxAttempts > 0 && a.before >= d.MaxAttempts:
			return &PoisonError{ID: a.task, Attempts: a.before}
		}
		return a.take(ctx, tx, dialect, d.Attempt, earlier.token != "")
	})
	if err == nil {
		err = over
	}
	return sqldb.Explain(err)
}

// record is a row of rabbitdelay_effects.
type record struct {
	attempts int
	token    string
	lease    int64
	done     bool
}

// lock locks the attempt's row, which it makes if there is none.
func (a *attempt) lock(ctx context.Context, tx sqldb.Tx, dialect Dialect) (r record, err error) {
	insert := "INTO rabbitdelay_effects (task_id, created_at, version, queue, updated_at) VALUES (?, ?, ?, ?, ?)"
	query := "SELECT attempts, lease_token, lease_until, done_at FROM rabbitdelay_effects" + effectRow
	switch dialect {
	case MySQL:
		insert, query = "INSERT IGNORE "+insert, query+" FOR UPDATE"
	case PostgreSQL:
		insert, query = "INSERT "+insert+" ON CONFLICT DO NOTHING", query+" FOR UPDATE"
	case SQLite:
		insert = "INSERT " + insert + " ON CONFLICT DO NOTHING"
	}
	if _, err := tx.ExecContext(ctx, dialect.Bind(insert), append(a.key(), a.clock.UnixMilli())...); err != nil {
		return record{}, err
	}
	var done sql.NullInt64
	err = tx.QueryRowContext(ctx, dialect.Bind(query), a.key()...).Scan(&r.attempts, &r.token, &r.lease, &done)
	r.done = done.Valid
	return r, err
}

// take writes the attempt into its row, and into the task's if the one before had
// no outcome.
func (a *attempt) take(ctx context.Context, tx sqldb.Tx, dialect Dialect, number int, died bool) error {
	a.number = max(a.before+1, number)
	now, until := a.clock.UnixMilli(), int64(0)
	if a.lease > 0 {
		until = a.clock.Add(a.lease).UnixMilli()
	}
	_, err := tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_effects SET attempts = ?, lease_token = ?, lease_until = ?, updated_at = ?"+effectRow),
		append([]any{a.number, a.token, until, now}, a.key()...)...)
	if err != nil || !died {
		return err
	}
	_, err = tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET attempts = CASE WHEN attempts < ? THEN ? ELSE attempts END, last_error = ?, updated_at = ? WHERE id = ? AND version = ? AND status IN ('pending', 'running')"),
		a.before, a.before, (&PoisonError{ID: a.task, Attempts: a.before}).Error(), now, a.task, a.version)
	return err
}

// settle records that the attempt had an outcome. One that does not count leaves
// the number of attempts as it was.
func (a *attempt) settle(ctx context.Context, c sqldb.Conn, dialect Dialect, counts bool) error {
	number := a.number
	if !counts {
		number = a.before
	}
	_, err := c.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_effects SET attempts = ?, lease_token = '', lease_until = 0"+effectRow+" AND lease_token = ?"),
		append(append([]any{number}, a.key()...), a.token)...)
	return err
}

// end leaves the lane for suspects. It does nothing for nil.
func (a *attempt) end() {
	if a != nil && a.release != nil {
		a.release()
	}
}

// suspected is true while a suspect runs in this process. Those that were handled
// beside a message which ended the process are suspects as well, and one at a time
// is enough to find out which it was.
var suspected atomic.Bool

// A suspect that runs for longer than laneWait is not the one that ends processes,
// and holds up the others no longer.
const (
	laneWait = time.Minute
	laneLook = 20 * time.Millisecond
)

// suspectLane waits until no other suspect runs.
func suspectLane(ctx context.Context) (release func(), err error) {
	patience := time.NewTimer(laneWait)
	defer patience.Stop()
	look := time.NewTicker(laneLook)
	defer look.Stop()
	for !suspected.CompareAndSwap(false, true) {
		select {
		case <-look.C:
		case <-patience.C:
			return func() {}, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another message that may have ended its process: %w", ctx.Err())
		}
	}
	return func() { suspected.Store(false) }, nil
}
