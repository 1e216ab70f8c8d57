package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Get reads one task. Errors: ErrNotFound.
func (s *Store) Get(ctx context.Context, ex Executor, id string) (Task, error) {
	c := s.on(ex)
	d, err := s.dialect.Resolve(ctx, c)
	if err != nil {
		return Task{}, err
	}
	var t Task
	err = scanOne(ctx, c, d, id, &t)
	if errors.Is(err, sql.ErrNoRows) {
		return Task{}, fmt.Errorf("task %s: %w", id, ErrNotFound)
	}
	if err == nil {
		err = readTags(ctx, c, d, []*Task{&t})
	}
	if err != nil {
		return t, fmt.Errorf("reading task %s: %w", id, sqldb.Explain(err))
	}
	return t, nil
}

// scanOne reads a row, also one that can never be sent.
func scanOne(ctx context.Context, c sqldb.Conn, d Dialect, id string, t *Task) error {
	rows, err := c.QueryContext(ctx, d.Bind("SELECT "+columns(true)+" FROM rabbitdelay_tasks WHERE id = ?"), id)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := scanTask(rows.Scan, t); err != nil && !isRowError(err) {
		return err
	}
	return rows.Err()
}

// listPage is how many rows List reads at a time.
const listPage = 500

// List iterates over tasks in the order of their due instant and id; what another
// program wrote without an instant comes last. It reads page by page, each page
// beginning where the last one ended, so no statement stays open between two steps,
// and tasks that move meanwhile may be seen twice or not at all. The iteration ends
// after an error.
func (s *Store) List(ctx context.Context, ex Executor, f Filter) iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		ex := s.on(ex)
		left := f.Limit
		if left <= 0 {
			left = math.MaxInt
		}
		d, err := s.dialect.Resolve(ctx, ex)
		if err != nil {
			yield(Task{}, fmt.Errorf("listing tasks: %w", err))
			return
		}
		// SQLite has any value in any column, and sorts texts behind all numbers, where
		// a cursor could not tell them apart.
		f.timeless = d == SQLite && f.After.ID != "" && stored(f.After.DeliverAt) > maxDue
		for left > 0 {
			n := min(left, listPage)
			page, err := page(ctx, ex, d, f, n)
			if err != nil {
				yield(Task{}, fmt.Errorf("listing tasks: %w", sqldb.Explain(err)))
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
			}
			left -= len(page)
			switch {
			case len(page) == n:
				f.After = page[n-1].Cursor()
			case f.timeless || d != SQLite || !f.DueTo.IsZero():
				return
			default:
				f.timeless, f.After = true, Cursor{}
			}
		}
	}
}

// page reads up to n tasks. Without a status it is the union of the statuses,
// each of which an index has in order.
func page(ctx context.Context, ex sqldb.Conn, d Dialect, f Filter, n int) ([]Task, error) {
	query, args, err := listQuery(d, f, columns(!f.WithoutBody), n)
	if err != nil {
		return nil, err
	}
	rows, err := ex.QueryContext(ctx, d.Bind(query), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	list := make([]Task, 0, min(n, 64))
	for rows.Next() {
		var t Task
		if err := scanTask(rows.Scan, &t); err != nil && !isRowError(err) {
			return nil, err
		}
		list = append(list, t)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	tagged := make([]*Task, len(list))
	for i := range list {
		tagged[i] = &list[i]
	}
	return list, readTags(ctx, ex, d, tagged)
}

// listQuery reads columns, among them due_at and id, of up to n tasks. The order makes
// each database go by the index that has it, and stop.
func listQuery(d Dialect, f Filter, columns string, n int) (string, []any, error) {
	var parts []string
	var args []any
	order := "due_at, id"
	if f.timeless {
		order = "id"
	}
	table := "rabbitdelay_tasks"
	if d == MySQL && f.IDPrefix+f.Tag == "" { // which might sort a whole status
		table += " FORCE INDEX (rabbitdelay_tasks_status)"
		if f.Queue+f.Exchange != "" {
			table = byDestination(d, f.Exchange)
		}
	}
	for _, status := range statuses {
		if f.Status != "" && f.Status != status {
			continue
		}
		one := f
		one.Status = status
		where, a, err := one.where()
		if err != nil {
			return "", nil, err
		}
		switch {
		case f.timeless:
			where, a = where+" AND due_at > ? AND id > ?", append(a, int64(maxDue), f.After.ID)
		case d == SQLite:
			where, a = where+" AND due_at <= ?", append(a, int64(maxDue))
		}
		if f.After.ID != "" && !f.timeless {
			condition, values := beyond(d, f.After)
			where, a = where+" AND "+condition, append(a, values...)
		}
		parts = append(parts, fmt.Sprintf("SELECT * FROM (SELECT %s FROM %s%s ORDER BY %s LIMIT %d) AS %s",
			columns, table, where, order, n, status))
		args = append(args, a...)
	}
	if len(parts) == 0 {
		return "", nil, fmt.Errorf("status is %q, expected one of %v", f.Status, statuses)
	}
	query := strings.Join(parts, " UNION ALL ")
	if len(parts) > 1 {
		query = fmt.Sprintf("SELECT * FROM (%s) AS every ORDER BY %s LIMIT %d", query, order, n)
	} else {
		query += " ORDER BY " + order
	}
	return query, args, nil
}

func (s *Store) query(ctx context.Context, ex Executor, query string, args []any, row func(sqldb.Rows) error) error {
	c := s.on(ex)
	d, err := s.dialect.Resolve(ctx, c)
	if err != nil {
		return err
	}
	rows, err := c.QueryContext(ctx, d.Bind(query), args...)
	if err != nil {
		return fmt.Errorf("reading tasks: %w", sqldb.Explain(err))
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return fmt.Errorf("reading tasks: %w", err)
		}
	}
	return rows.Err()
}
