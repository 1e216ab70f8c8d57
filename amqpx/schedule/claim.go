package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// claimed is a task that this relay may publish until its lease ends.
type claimed struct {
	Task
	failures int   // sends that failed since the last confirmed one
	bad      error // what another program wrote cannot be read
}

func (c *claimed) lane() lane { return lane{c.Queue, c.Exchange} }

// readCommitted keeps MySQL from locking the gaps between claimed rows, into
// which others want to insert.
func readCommitted(d Dialect) *sql.TxOptions {
	if d == SQLite {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// take looks for lanes and claims up to a batch of their tasks, unless too many
// bytes are on their way.
func (s *Store) take(ctx context.Context) ([]*claimed, error) {
	select {
	case s.claiming <- struct{}{}:
		defer func() { <-s.claiming }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.aloft.Load() >= int64(s.cfg.Workers+1)*int64(s.cfg.BatchBytes) {
		return nil, nil
	}
	until := s.now().Add(s.cfg.Horizon).UnixMilli()
	lanes, err := s.look(ctx, toSend, s.pace.horizon(until))
	if err != nil {
		return nil, err
	}
	lanes, next := divide(lanes, until)
	if len(lanes) > 0 {
		next = 0 // what cannot be claimed now is looked for at the usual interval
	}
	s.ahead.set(next)
	if len(lanes) == 0 {
		return nil, nil
	}
	list, err := s.claim(ctx, toSend, s.wishes(turns(lanes, s.got), until))
	clear(s.got)
	for _, c := range list {
		s.got[c.lane()]++
	}
	return list, err
}

// wishes says what may be claimed of the lanes.
func (s *Store) wishes(lanes []waiting, until int64) []wish {
	now := s.now()
	list := make([]wish, 0, len(lanes))
	for _, w := range lanes {
		list = append(list, s.health.wishes(w.lane, until, now)...)
	}
	return list
}

// claim takes up to a batch of tasks for the time of the lease, of each lane its
// share, the most urgent first. What a lane does not use goes to the others.
// Rows that another relay is claiming, or a handler is working on, are passed
// over.
func (s *Store) claim(ctx context.Context, k kind, wishes []wish) ([]*claimed, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return nil, err
	}
	var list []*claimed
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx sqldb.Tx) error {
		c := claiming{tx: tx, d: d, k: k, now: s.now().UnixMilli(), lanes: wishes}
		var err error
		list, err = c.run(ctx, s.cfg.Batch, s.cfg.BatchBytes, s.now().Add(s.cfg.Lease).UnixMilli())
		if k == toSend {
			s.more.Store(len(c.picks) == s.cfg.Batch || len(c.picks) > len(list))
		}
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

// claiming is one claim on its way.
type claiming struct {
	tx    sqldb.Tx
	d     Dialect
	k     kind
	now   int64
	lanes []wish
	picks []pick
}

// pick is a row that may be claimed.
type pick struct {
	lane int   // index of the wish
	id   any   // as the driver has it
	size int64 // bytes of what varies, the body above all
}

func (c *claiming) run(ctx context.Context, batch, bytes int, lease int64) ([]*claimed, error) {
	if c.d == SQLite {
		// A read lock that becomes a write lock could fail.
		if _, err := c.tx.ExecContext(ctx, "UPDATE rabbitdelay_tasks SET claimed_until = 0 WHERE id = ''"); err != nil {
			return nil, err
		}
	}
	if err := c.pick(ctx, batch); err != nil || len(c.picks) == 0 {
		return nil, err
	}
	return c.mark(ctx, within(int64(bytes), c.picks), lease)
}

// pick chooses rows: shares for all lanes, and then for those that have more what
// the others left.
func (c *claiming) pick(ctx context.Context, batch int) error {
	got := make([]int, len(c.lanes))
	most := make([]int, len(c.lanes))
	for i, w := range c.lanes {
		most[i] = w.most
	}
	for range 2 {
		limits := shares(batch-len(c.picks), got, most)
		before := len(c.picks)
		if err := c.pickShares(ctx, got, limits); err != nil {
			return err
		}
		for _, p := range c.picks[before:] {
			got[p.lane]++
			limits[p.lane]--
			most[p.lane]--
		}
		for i, left := range limits {
			if left > 0 {
				most[i] = 0 // it has no more
			}
		}
		if len(c.picks) == before {
			break
		}
	}
	return nil
}

// pickShares adds up to limits rows of each lane to the picks, after skipping
// those that are picked already.
func (c *claiming) pickShares(ctx context.Context, skip, limits []int) error {
	size, lock := "LENGTH(body) + COALESCE(LENGTH(headers), 0)", ""
	if c.d != SQLite {
		lock = " FOR UPDATE SKIP LOCKED"
	}
	instant := c.k.instant(c.d)
	var parts []string
	var args []any
	for i, w := range c.lanes {
		if limits[i] <= 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("SELECT %d AS lane, id, size FROM (SELECT id, %s AS size FROM %s WHERE %s AND queue = ? AND exchange = ? AND %s <= ? AND claimed_until <= ?%s ORDER BY %s LIMIT ? OFFSET ?%s) AS picked",
			i, size, c.k.table(c.d), c.k.rows(), instant, w.narrow, instant, lock))
		args = append(append(args, w.queue, w.exchange, w.until, c.now), append(slices.Clone(w.args), limits[i], skip[i])...)
	}
	if len(parts) == 0 {
		return nil
	}
	rows, err := c.tx.QueryContext(ctx, c.d.Bind(strings.Join(parts, " UNION ALL ")), args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var p pick
		if err := rows.Scan(&p.lane, &p.id, &p.size); err != nil {
			return err
		}
		if b, ok := p.id.([]byte); ok && c.d != SQLite {
			p.id = string(b)
		}
		c.picks = append(c.picks, p)
	}
	return rows.Err()
}

// mark takes the lease on what was picked, and reads it.
func (c *claiming) mark(ctx context.Context, picks []pick, lease int64) ([]*claimed, error) {
	which := make([]any, len(picks))
	for i, p := range picks {
		which[i] = p.id
	}
	const update = "UPDATE rabbitdelay_tasks SET claimed_until = ? WHERE id "
	cols := columns(true) + ", send_failures"
	in := "IN (" + marks(len(which)) + ")"
	switch c.d {
	case PostgreSQL:
		list, err := json.Marshal(which)
		if err != nil {
			return nil, err
		}
		return readClaimed(ctx, c.tx, c.d, update+"= ANY (ARRAY (SELECT json_array_elements_text("+sqldb.JSON+"))) RETURNING "+cols, []any{lease, string(list)})
	case SQLite:
		return readClaimed(ctx, c.tx, c.d, update+in+" RETURNING "+cols, append([]any{lease}, which...))
	}
	if _, err := c.tx.ExecContext(ctx, update+in, append([]any{lease}, which...)...); err != nil {
		return nil, err
	}
	return readClaimed(ctx, c.tx, c.d, "SELECT "+cols+" FROM rabbitdelay_tasks WHERE id "+in, which)
}

func readClaimed(ctx context.Context, tx sqldb.Tx, d Dialect, query string, args []any) ([]*claimed, error) {
	rows, err := tx.QueryContext(ctx, d.Bind(query), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var list []*claimed
	for rows.Next() {
		c := &claimed{}
		err := scanTask(rows.Scan, &c.Task, &c.failures)
		if isRowError(err) {
			c.bad = err
		} else if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, rows.Err()
}
