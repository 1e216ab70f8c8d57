package rows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Get reads a task, even one that can never be sent. The error is sql.ErrNoRows if the task does not exist.
func (c Conn) Get(ctx context.Context, id string) (*Task, error) {
	t, err := scanTask(func(dest ...any) error {
		return c.one(ctx, "SELECT "+taskColumns+" FROM rabbitdelay_tasks WHERE id = ?", []any{id}, dest...)
	})
	if err != nil {
		return nil, err
	}
	return t, c.readTags(ctx, []*Task{t})
}

// tasks runs a query for taskColumns.
func (c Conn) tasks(ctx context.Context, query string, args []any) (list []*Task, err error) {
	err = c.each(ctx, query, args, func(scan scanner) error {
		t, err := scanTask(scan)
		if err == nil {
			list = append(list, t)
		}
		return err
	})
	return list, err
}

// Sort is an order of tasks: by due time and id or, with Ended, by end time and id. With Last, the latest task comes
// first.
type Sort struct{ Ended, Last bool }

func (s Sort) column() string {
	if s.Ended {
		return "finished_at"
	}
	return "due_at"
}

// order returns the expressions for ORDER BY: the column of the time, and the id.
func (s Sort) order() string {
	if s.Last {
		return s.column() + " DESC, id DESC"
	}
	return s.column() + ", id"
}

// Place returns the position of a task in the order.
func (s Sort) Place(t *Task) Place {
	if s.Ended {
		return Place{t.FinishedAt, t.ID}
	}
	return Place{t.DeliverAt, t.ID}
}

// Listing describes a list of tasks. Tasks without a time in the order, such as pending tasks in an order by end,
// are left out. Only the list by ascending due time contains rows without a valid time, at its end.
type Listing struct {
	Filter

	Sort        Sort
	After       Place // zero means from the beginning
	Limit       int
	WithoutBody bool

	timeless bool // lists rows whose due_at is not a valid time, by id
}

// listPage is how many rows List reads at a time.
const listPage = 500

// List calls yield with the tasks of a list until yield returns false. Each page begins where the previous one ended,
// so that no statement stays open in between.
func (c Conn) List(ctx context.Context, l Listing, yield func(*Task) bool) error {
	// SQLite allows any value in any column. It sorts text values after all numbers, so tasks with such a due time all
	// have the same position by time, and are listed by id.
	l.timeless = l.Sort == Sort{} && c.sqlite() && l.After.ID != "" && Stored(l.After.DeliverAt) > MaxDue
	columns := taskColumns
	if l.WithoutBody {
		columns = bodiless
	}
	for left := l.Limit; left > 0; {
		n := min(left, listPage)
		if l.ByError() {
			n = listPage // read whole pages, because few rows may match
		}
		query, args := c.listQuery(l, columns, n)
		page, err := c.tasks(ctx, query, args)
		if err != nil {
			return err
		}
		chosen := page
		if l.ByError() {
			chosen = slices.DeleteFunc(slices.Clone(page), func(t *Task) bool { return !l.Matches(t.LastError) })
			chosen = chosen[:min(len(chosen), left)]
		}
		if err := c.readTags(ctx, chosen); err != nil {
			return err
		}
		for _, t := range chosen {
			if !yield(t) {
				return nil
			}
		}
		left -= len(chosen)
		switch {
		case len(page) == n:
			l.After = l.Sort.Place(page[n-1])
		case l.Sort != Sort{} || l.timeless || !c.sqlite() || !l.DueTo.IsZero():
			return nil
		default:
			l.timeless, l.After = true, Place{}
		}
	}
	return nil
}

// listQuery returns a query for up to n tasks. The columns must include due_at and id. If the listing has no status,
// the query is the union of one query for each status, because an index contains the tasks of one status in order. Each
// database then uses that index and stops early.
func (c Conn) listQuery(l Listing, columns string, n int) (query string, args []any) {
	order := l.Sort.order()
	if l.timeless {
		order = "id"
	}
	table := "rabbitdelay_tasks"
	switch {
	case l.IDPrefix+l.Tag+l.UniqueKey != "" || len(l.IDs) > 0: // with an index by time, the database might read all tasks of a status
	case l.Sort.Ended:
		table = c.tasksBy("finished", "")
	case l.Queue+l.Exchange != "":
		table = c.byDestination(l.Exchange, "")
	default:
		table = c.tasksBy("status", "")
	}
	var parts []string
	for _, status := range Statuses {
		if l.Status != "" && l.Status != status {
			continue
		}
		one := l.Filter
		one.Status = status
		where := one.where()
		switch {
		case l.timeless:
			where.and("due_at > ? AND id > ?", int64(MaxDue), l.After.ID)
		case l.Sort.Ended:
			where.and("finished_at <= ?", int64(MaxDue))
		case c.sqlite():
			where.and("due_at <= ?", int64(MaxDue))
		}
		if l.After.ID != "" && !l.timeless {
			condition, values := c.beyond(l.Sort, l.After)
			where.and(condition, values...)
		}
		parts = append(parts, fmt.Sprintf("SELECT * FROM (SELECT %s FROM %s%s ORDER BY %s LIMIT %d) AS %s", columns, table, where, order, n, status))
		args = append(args, where.args...)
	}
	query = strings.Join(parts, " UNION ALL ")
	if len(parts) > 1 {
		return fmt.Sprintf("SELECT * FROM (%s) AS every ORDER BY %s LIMIT %d", query, order, n), args
	}
	return query + " ORDER BY " + order, args
}

// byDestination returns the table with a hint for the index of a destination. Without statistics, the planner would
// consider the index of the status equally good for ORDER BY due_at, although in that index the tasks of a rarely used
// destination are far apart.
func (c Conn) byDestination(exchange, sqlite string) string {
	if exchange != "" {
		return c.tasksBy("exchange", sqlite)
	}
	return c.tasksBy("queue", sqlite)
}

// Effect is a row in rabbitdelay_effects, for display. Times that are not set are zero.
type Effect struct {
	Version    int64
	Queue      string
	DoneAt     time.Time
	Attempts   int
	LeaseUntil time.Time
}

// Effects returns the rows of rabbitdelay_effects for a task, sorted by version and queue.
func (c Conn) Effects(ctx context.Context, id string) (list []Effect, err error) {
	const query = "SELECT version, queue, COALESCE(done_at, 0), attempts, lease_until FROM rabbitdelay_effects WHERE task_id = ? ORDER BY version, queue"
	err = c.each(ctx, query, []any{id}, func(scan scanner) error {
		var e Effect
		var done, lease int64
		err := scan(&e.Version, &e.Queue, &done, &e.Attempts, &lease)
		e.DoneAt, e.LeaseUntil = orNever(done), orNever(lease)
		list = append(list, e)
		return err
	})
	return list, err
}

// orNever returns the time in a column, or the zero time if the column is 0.
func orNever(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
