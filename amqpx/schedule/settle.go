package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

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
	var pauses strings.Builder
	last := s.cfg.MaxSends - 1
	for n := range max(last, 1) { // a CASE has at least one WHEN
		fmt.Fprintf(&pauses, " WHEN %d THEN %d", n, grace<<n)
	}
	again := fmt.Sprintf("(CASE WHEN due_at > ? THEN due_at ELSE ? END) + (CASE sends%s ELSE %d END)", pauses.String(), grace<<last)
	// resend_at comes before sends, because MySQL assigns from left to right. A
	// handler's failure may have set a later one.
	set := "resend_at = CASE WHEN resend_at > " + again + " THEN resend_at ELSE " + again + " END, " +
		"sent_at = ?, sends = sends + 1, send_failures = 0, claimed_until = 0, " +
		"last_error = CASE WHEN attempts = 0 THEN NULL ELSE last_error END"
	defer wrote(s.db)
	return s.settle(ctx, list, set, "", now, now, now, now, now)
}

// giveBack leaves tasks that could not be sent to a claim after until.
func (s *Store) giveBack(ctx context.Context, list []*claimed, cause string, until time.Time) error {
	return s.settle(ctx, list, "last_error = ?, updated_at = ?, send_failures = send_failures + 1, claimed_until = ?",
		" AND "+stillPending, cause, s.now().UnixMilli(), until.UnixMilli())
}

// postpone leaves tasks that were not tried to a claim after until.
func (s *Store) postpone(ctx context.Context, list []*claimed, until time.Time) error {
	return s.settle(ctx, list, "claimed_until = ?", "", until.UnixMilli())
}

// fail ends tasks that cannot be sent.
func (s *Store) fail(ctx context.Context, list []*claimed, cause string) error {
	now := s.now().UnixMilli()
	return s.settle(ctx, list, "status = 'failed', finished_at = ?, updated_at = ?, claimed_until = 0, send_failures = send_failures + 1, last_error = ?",
		" AND "+stillPending, now, now, cause)
}

// failUnreadable ends tasks whose rows cannot be read, whatever their version and
// the type of their ids is.
func (s *Store) failUnreadable(ctx context.Context, list []*claimed, cause string) error {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return err
	}
	now := s.now().UnixMilli()
	const fail = "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = ?, updated_at = ?, claimed_until = 0, last_error = ? WHERE status = 'pending' AND id IN "
	for _, c := range list {
		query, args := fail+"(?)", []any{now, now, cause, c.ID}
		if d == SQLite {
			query, args = fail+"(?, ?)", append(args, []byte(c.ID))
		}
		err := sqldb.Transact(ctx, s.db, readCommitted(d), func(tx sqldb.Tx) error {
			_, err := tx.ExecContext(ctx, d.Bind(query), args...)
			return err
		})
		if err != nil {
			return fmt.Errorf("failing task %q: %w", c.ID, sqldb.Explain(err))
		}
	}
	return nil
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
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx sqldb.Tx) (err error) {
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
func unlocked(ctx context.Context, tx sqldb.Tx, d Dialect, which []any, query string, args []any) (free, held []any, err error) {
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
