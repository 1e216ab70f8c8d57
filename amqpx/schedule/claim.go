package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// claimed is a task that this relay may publish until its lease ends.
type claimed struct {
	Task
	failures int   // sends that failed since the last confirmed one
	bad      error // what another program wrote cannot be read
}

// kind is what a claim looks for.
type kind bool

const (
	toSend   kind = false // never sent in this version, and due within the horizon
	toResend kind = true  // sent, overdue, and still pending
)

// where is the condition of a claim; each has an index of its own.
func (s *Store) where(d Dialect, k kind) (where, order string, args []any) {
	now := s.now()
	if k == toResend {
		return "status = 'pending' AND resend_at <= ? AND claimed_until <= ?", "resend_at",
			[]any{now.UnixMilli(), now.UnixMilli()}
	}
	due := "due_at"
	if d == PostgreSQL {
		due = "due_at + 0" // the index is on this expression; the migration says why
	}
	return "status = 'pending' AND resend_at IS NULL AND " + due + " <= ? AND claimed_until <= ?", due,
		[]any{now.Add(s.cfg.Horizon).UnixMilli(), now.UnixMilli()}
}

// readCommitted keeps MySQL from locking the gaps between claimed rows, into
// which others want to insert.
func readCommitted(d Dialect) *sql.TxOptions {
	if d == SQLite {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// claim takes up to a batch of tasks, the most urgent first, for the time of the
// lease. Rows that another relay is claiming, or a handler is working on, are
// passed over.
func (s *Store) claim(ctx context.Context, k kind) ([]*claimed, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return nil, err
	}
	var list []*claimed
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx *sql.Tx) error {
		var err error
		where, order, args := s.where(d, k)
		lease := s.now().Add(s.cfg.Lease).UnixMilli()
		pick := fmt.Sprintf("WHERE %s ORDER BY %s LIMIT %d", where, order, s.cfg.Batch)
		cols := columns(true) + ", send_failures"
		const update = "UPDATE rabbitdelay_tasks SET claimed_until = ? WHERE id "
		args = append([]any{lease}, args...)
		switch d {
		case SQLite:
			// A statement that writes from its start; a read lock that becomes a write
			// lock could fail.
			list, err = readClaimed(ctx, tx, d, update+"IN (SELECT id FROM rabbitdelay_tasks "+pick+") RETURNING "+cols, args)
			return err
		case PostgreSQL:
			// The array is made once, before the update begins. A subquery without it
			// might run again and again, and claim more than one batch.
			list, err = readClaimed(ctx, tx, d, update+"= ANY (ARRAY (SELECT id FROM rabbitdelay_tasks "+pick+" FOR UPDATE SKIP LOCKED)) RETURNING "+cols, args)
			return err
		}
		list, err = readClaimed(ctx, tx, d, "SELECT "+cols+" FROM rabbitdelay_tasks "+pick+" FOR UPDATE SKIP LOCKED", args[1:])
		if err != nil || len(list) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, d.Bind(update+"IN ("+marks(len(list))+")"), append([]any{lease}, ids(list)...)...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claiming tasks: %w", sqldb.Explain(err))
	}
	slices.SortFunc(list, func(a, b *claimed) int {
		return cmp.Or(a.DeliverAt.Compare(b.DeliverAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

func readClaimed(ctx context.Context, tx *sql.Tx, d Dialect, query string, args []any) ([]*claimed, error) {
	rows, err := tx.QueryContext(ctx, d.Bind(query), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var list []*claimed
	for rows.Next() {
		c := &claimed{}
		err := scanTask(rows.Scan, &c.Task, &c.failures)
		if he, ok := errors.AsType[*headersError](err); ok {
			c.bad = he
		} else if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, rows.Err()
}

func ids(list []*claimed) []any {
	out := make([]any, len(list))
	for i, c := range list {
		out[i] = c.ID
	}
	return out
}

// byVersion groups tasks so that one statement can check the version of many.
// Nearly all have version 1.
func byVersion(list []*claimed) map[int64][]*claimed {
	m := map[int64][]*claimed{}
	for _, c := range list {
		m[c.Version] = append(m[c.Version], c)
	}
	return m
}

// markSent records confirmed publishes. A row that changed meanwhile has another
// version, and stays to be sent. A row that a handler holds is left to it: it
// becomes done, or the handler's failure marks it.
func (s *Store) markSent(ctx context.Context, list []*claimed) error {
	now := s.now().UnixMilli()
	grace := s.cfg.Grace.Milliseconds()
	var again strings.Builder
	for n := range 6 {
		fmt.Fprintf(&again, " WHEN %d THEN %d", n, grace<<n)
	}
	set := "sent_at = ?, sends = sends + 1, send_failures = 0, claimed_until = 0, " +
		"last_error = CASE WHEN attempts = 0 THEN NULL ELSE last_error END, " +
		"resend_at = (CASE WHEN due_at > ? THEN due_at ELSE ? END) + " +
		fmt.Sprintf("(CASE sends%s ELSE %d END)", again.String(), grace<<6)
	return s.settle(ctx, list, set, "", now, now, now)
}

// release gives tasks back that could not be sent, to be tried again after a
// pause.
func (s *Store) release(ctx context.Context, list []*claimed, cause string, pause time.Duration) error {
	now := s.now()
	return s.settle(ctx, list, "last_error = ?, updated_at = ?, send_failures = send_failures + 1, claimed_until = ?",
		" AND status = 'pending'", cause, now.UnixMilli(), now.Add(pause).UnixMilli())
}

// fail ends tasks that cannot be sent.
func (s *Store) fail(ctx context.Context, list []*claimed, cause string) error {
	now := s.now().UnixMilli()
	return s.settle(ctx, list, "status = 'failed', finished_at = ?, updated_at = ?, claimed_until = 0, send_failures = send_failures + 1, last_error = ?",
		" AND status = 'pending'", now, now, cause)
}

// settling is an update of rows that this relay has claimed.
type settling struct {
	version        int64
	ids            []any
	set, condition string
	args           []any
	until          time.Time // the end of the lease, after which it is no longer ours
}

// settleTries is how often settle comes back at once for rows that were locked:
// another relay's claim holds rows for a moment only. A longer lock is a
// handler's; the relay does not wait for it and looks again before its next
// batch.
const settleTries = 3

func (s *Store) settle(ctx context.Context, list []*claimed, set, condition string, args ...any) error {
	for version, group := range byVersion(list) {
		x := settling{version, ids(group), set, condition, args, s.now().Add(s.cfg.Lease - s.cfg.PublishTimeout)}
		if err := s.settleSome(ctx, &x, settleTries); err != nil {
			return err
		}
		if len(x.ids) > 0 {
			s.mu.Lock()
			s.held = append(s.held, x)
			s.mu.Unlock()
		}
	}
	return nil
}

// settleHeld comes back for the rows that settle left behind.
func (s *Store) settleHeld(ctx context.Context, tries int) error {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	var errs []error
	for _, x := range held {
		errs = append(errs, s.settleSome(ctx, &x, tries))
		if len(x.ids) > 0 && s.now().Before(x.until) {
			s.mu.Lock()
			s.held = append(s.held, x)
			s.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// settleSome leaves in x the rows that were locked every time.
func (s *Store) settleSome(ctx context.Context, x *settling, tries int) error {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return err
	}
	pause := 5 * time.Millisecond
	for try := 1; ; try++ {
		left, err := s.settleOnce(ctx, d, x.version, x.ids, x.set, x.condition, x.args)
		if err != nil {
			return fmt.Errorf("marking tasks: %w", sqldb.Explain(err))
		}
		if x.ids = left; len(left) == 0 || try >= tries {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// settleOnce updates the rows that nobody holds, and returns the others.
func (s *Store) settleOnce(ctx context.Context, d Dialect, version int64, which []any, set, condition string, args []any) (left []any, err error) {
	update := "UPDATE rabbitdelay_tasks SET " + set + " WHERE version = ?" + condition + " AND id "
	args = append(slices.Clone(args), version)
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx *sql.Tx) (err error) {
		left = nil
		free := which
		switch d {
		case PostgreSQL:
			list, err := json.Marshal(which)
			if err != nil {
				return err
			}
			_, left, err = unlocked(ctx, tx, d, which, "WITH free AS (SELECT id FROM rabbitdelay_tasks WHERE id = ANY (ARRAY (SELECT json_array_elements_text("+sqldb.JSON+"))) FOR UPDATE SKIP LOCKED), "+
				"settled AS ("+update+"= ANY (ARRAY (SELECT id FROM free))) SELECT id FROM free", append([]any{string(list)}, args...))
			return err
		case MySQL:
			free, left, err = unlocked(ctx, tx, d, which, "SELECT id FROM rabbitdelay_tasks WHERE id IN ("+marks(len(which))+") FOR UPDATE SKIP LOCKED", which)
			if err != nil || len(free) == 0 {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, d.Bind(update+"IN ("+marks(len(free))+")"), append(slices.Clone(args), free...)...)
		return err
	})
	return left, err
}

// unlocked runs a query that locks those of the rows that nobody else holds and
// gives their ids, and tells them from the others.
func unlocked(ctx context.Context, tx *sql.Tx, d Dialect, which []any, query string, args []any) (free, held []any, err error) {
	rows, err := tx.QueryContext(ctx, d.Bind(query), args...)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	got := make(map[any]bool, len(which))
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, nil, err
		}
		got[id] = true
	}
	for _, id := range which {
		if got[id] {
			free = append(free, id)
		} else {
			held = append(held, id)
		}
	}
	return free, held, rows.Err()
}
