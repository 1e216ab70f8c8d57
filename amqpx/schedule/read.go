package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Filter chooses tasks. The zero value chooses all; conditions are joined by and.
type Filter struct {
	Queue    string
	Exchange string
	Status   Status
	DueFrom  time.Time // inclusive
	DueTo    time.Time // exclusive
	IDPrefix string
	Tag      string // tasks that have this tag
	// Header and HeaderValue choose tasks that have this header. No index knows
	// it: combine it with others where there are many tasks.
	Header, HeaderValue string

	// The rest concerns List only.
	After Cursor // start after this task, see Task.Cursor
	Limit int    // at most so many; 0 for all
	// WithoutBody leaves Body empty, which saves reading it.
	WithoutBody bool

	timeless bool // of List: rows whose due_at is no instant, by id
}

// Cursor is a place in the order of List.
type Cursor struct {
	DeliverAt time.Time
	ID        string
}

// String is the cursor as text, which ParseCursor reads.
func (c Cursor) String() string {
	if c.ID == "" {
		return ""
	}
	return strconv.FormatInt(stored(c.DeliverAt), 10) + "/" + c.ID
}

// ParseCursor reads a cursor that String wrote.
func ParseCursor(s string) (Cursor, error) {
	due, id, ok := strings.Cut(s, "/")
	ms, err := strconv.ParseInt(due, 10, 64)
	if !ok || err != nil || checkID(id) != nil {
		return Cursor{}, fmt.Errorf("%q is no cursor; expected one that was printed before, such as 1767225600000/order-42", s)
	}
	return Cursor{DeliverAt: time.UnixMilli(ms), ID: id}, nil
}

// QueueCount is the number of tasks of one queue in one status. Queue is empty
// for tasks whose destination is an exchange.
type QueueCount struct {
	Queue  string
	Status Status
	Count  int64
}

// Bin is the number of tasks due from From, inclusive, to To, exclusive.
type Bin struct {
	From, To time.Time
	Count    int64
}

// taskColumns are those of a Task, in the order of scanTask.
const taskColumns = "id, queue, exchange, routing_key, due_at, version, status, %s, content_type, type, correlation_id, priority, expires_after, headers, created_at, updated_at, finished_at, attempts, last_error, sent_at, sends"

func columns(withBody bool) string {
	if withBody {
		return fmt.Sprintf(taskColumns, "body")
	}
	return fmt.Sprintf(taskColumns, "NULL")
}

// scanTask reads a row of taskColumns, and further columns into extra.
func scanTask(scan func(...any) error, t *Task, extra ...any) error {
	var due, created, updated int64
	var finished, sent, expires sql.NullInt64
	var headers, lastError sql.NullString
	dest := []any{&t.ID, &t.Queue, &t.Exchange, &t.RoutingKey, &due, &t.Version, &t.Status, &t.Body, &t.ContentType,
		&t.Type, &t.CorrelationID, &t.Priority, &expires, &headers, &created, &updated, &finished, &t.Attempts, &lastError, &sent, &t.Sends}
	dest = append(dest, extra...)
	row := &rowError{}
	if err := scan(dest...); err != nil {
		names := strings.Split(columns(true)+", send_failures", ", ")
		for i := range dest {
			dest[i] = cell{names[i], dest[i], row}
		}
		if scan(dest...) != nil {
			return err
		}
	}
	t.DeliverAt, t.CreatedAt, t.UpdatedAt = time.UnixMilli(due), time.UnixMilli(created), time.UnixMilli(updated)
	if finished.Valid {
		t.FinishedAt = time.UnixMilli(finished.Int64)
	}
	if sent.Valid {
		t.SentAt = time.UnixMilli(sent.Int64)
	}
	t.ExpiresAfter = time.Duration(expires.Int64) * time.Millisecond
	t.LastError = lastError.String
	if headers.String != "" {
		if err := json.Unmarshal([]byte(headers.String), &t.Headers); err != nil {
			return &headersError{err}
		}
	}
	if row.checkTexts(t); len(row.reasons) > 0 {
		return row
	}
	return nil
}

// headersError is that of a row which another program wrote. The other columns
// have been read.
type headersError struct{ err error }

func (e *headersError) Error() string {
	return "column headers: expected a JSON object of strings: " + e.err.Error()
}
func (e *headersError) Unwrap() error { return e.err }

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
	query, args, err := listQuery(d, f, n)
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

func listQuery(d Dialect, f Filter, n int) (string, []any, error) {
	var parts []string
	var args []any
	order := "due_at, id"
	if f.timeless {
		order = "id"
	}
	table := "rabbitdelay_tasks"
	if d == MySQL && f.Queue+f.Exchange+f.IDPrefix+f.Tag == "" {
		// MariaDB would read and sort a whole status by another index.
		table += " FORCE INDEX (rabbitdelay_tasks_status)"
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
			columns(!f.WithoutBody), table, where, order, n, status))
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

// beyond is the condition for what comes after a place in the order of List,
// written so that an index leads to it also when many tasks are due at one
// instant.
func beyond(d Dialect, c Cursor) (string, []any) {
	at := stored(c.DeliverAt)
	if d == MySQL {
		return "due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?))", []any{at, at, at, c.ID}
	}
	return "(due_at, id) > (?, ?)", []any{at, c.ID}
}

// where is the WHERE clause, empty for no condition. The status is written out,
// so that the planner can use a partial index.
func (f Filter) where() (string, []any, error) {
	var conditions []string
	var args []any
	add := func(condition string, values ...any) {
		conditions = append(conditions, condition)
		args = append(args, values...)
	}
	if f.Status != "" {
		if !f.Status.valid() {
			return "", nil, fmt.Errorf("status is %q, expected one of %v", f.Status, statuses)
		}
		add("status = '" + string(f.Status) + "'")
	} else if f.Queue != "" || f.Exchange != "" || !f.DueFrom.IsZero() || !f.DueTo.IsZero() {
		// All there are, because the indexes have the status before the instant.
		quoted := make([]string, len(statuses))
		for i, status := range statuses {
			quoted[i] = "'" + string(status) + "'"
		}
		add("status IN (" + strings.Join(quoted, ", ") + ")")
	}
	if f.Queue != "" {
		add("queue = ? AND exchange = ''", f.Queue) // as the index has it
	}
	if f.Exchange != "" {
		add("exchange = ? AND queue = ''", f.Exchange)
	}
	if f.Tag != "" {
		add("id IN (SELECT task_id FROM rabbitdelay_task_tags WHERE tag = ?)", f.Tag)
	}
	if f.Header != "" {
		condition, values, err := whereHeader(f.Header, f.HeaderValue)
		if err != nil {
			return "", nil, err
		}
		add(condition, values...)
	}
	if !f.DueFrom.IsZero() {
		add("due_at >= ?", stored(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		add("due_at < ?", stored(f.DueTo))
	}
	if f.IDPrefix != "" {
		// A range, which every index of a binary collation can answer; no valid
		// id sorts after the last code point.
		add("id >= ?", f.IDPrefix)
		add("id < ?", f.IDPrefix+"\U0010FFFF")
	}
	if len(conditions) == 0 {
		return "", nil, nil
	}
	return " WHERE " + strings.Join(conditions, " AND "), args, nil
}

// Count counts tasks by queue and status, in that order.
func (s *Store) Count(ctx context.Context, ex Executor, f Filter) ([]QueueCount, error) {
	where, args, err := f.where()
	if err != nil {
		return nil, fmt.Errorf("counting tasks: %w", err)
	}
	var counts []QueueCount
	err = s.query(ctx, ex, "SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks"+where+" GROUP BY queue, status ORDER BY queue, status", args, func(rows sqldb.Rows) error {
		var c QueueCount
		err := rows.Scan(&c.Queue, &c.Status, &c.Count)
		counts = append(counts, c)
		return err
	})
	return counts, err
}

// Histogram counts tasks by due instant: n bins of the given width, from the
// instant from on. Widths are whole milliseconds.
func (s *Store) Histogram(ctx context.Context, ex Executor, f Filter, from time.Time, width time.Duration, n int) ([]Bin, error) {
	if width < time.Millisecond || n < 1 || n > 100_000 {
		return nil, fmt.Errorf("histogram: width %v and %d bins, expected at least 1ms and 1 to 100000", width, n)
	}
	start, step := millis(from), width.Milliseconds()
	bins := make([]Bin, n)
	for i := range bins {
		bins[i].From = time.UnixMilli(start + int64(i)*step)
		bins[i].To = time.UnixMilli(start + int64(i+1)*step)
	}
	if f.DueFrom.IsZero() || f.DueFrom.Before(bins[0].From) {
		f.DueFrom = bins[0].From
	}
	if f.DueTo.IsZero() || f.DueTo.After(bins[n-1].To) {
		f.DueTo = bins[n-1].To
	}
	where, args, err := f.where()
	if err != nil {
		return nil, fmt.Errorf("histogram of tasks: %w", err)
	}
	// The remainder is taken off first, because / keeps it in MySQL.
	bin := fmt.Sprintf("((due_at - %d) - (due_at - %d) %% %d) / %d", start, start, step, step)
	err = s.query(ctx, ex, "SELECT "+bin+" AS bin, COUNT(*) FROM rabbitdelay_tasks"+where+" GROUP BY bin", args, func(rows sqldb.Rows) error {
		var i float64 // MySQL's quotient is a decimal
		var count int64
		if err := rows.Scan(&i, &count); err != nil {
			return err
		}
		if k := int(i); k >= 0 && k < n {
			bins[k].Count = count
		}
		return nil
	})
	return bins, err
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
