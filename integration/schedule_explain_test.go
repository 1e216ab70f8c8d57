package integration_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// statement is one that a store has run.
type statement struct {
	query string
	args  []any
}

// recorder opens connections that note the statements they run.
type recorder struct {
	open func() (driver.Conn, error)

	mu   sync.Mutex
	seen []statement
}

func (r *recorder) Connect(context.Context) (driver.Conn, error) {
	conn, err := r.open()
	if err != nil {
		return nil, err
	}
	return recording{conn.(fullConn), r}, nil
}

func (r *recorder) Driver() driver.Driver { return nil }

func (r *recorder) take() []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// fullConn is what all three drivers' connections are.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
}

type recording struct {
	fullConn
	r *recorder
}

func (c recording) note(query string, args []driver.NamedValue) {
	s := statement{query: query}
	for _, a := range args {
		s.args = append(s.args, a.Value)
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.seen = append(c.r.seen, s)
}

func (c recording) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.note(query, args)
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c recording) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.note(query, args)
	return c.fullConn.QueryContext(ctx, query, args)
}

// PrepareContext keeps a driver that wants to prepare (mysql, which answers
// ErrSkip above when there are arguments) in its own way.
func (c recording) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if p, ok := c.fullConn.(driver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return c.Prepare(query)
}

// The statements that run all the time find their rows by an index, and read no
// more of the table than they need, however many tasks there are.
func TestScheduleUsesIndexes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		rec := &recorder{open: func() (driver.Conn, error) { return db.Driver().Open(db.dsn) }}
		recorded := sql.OpenDB(rec)
		defer func() { _ = recorded.Close() }()
		newStore(t, db, nil, schedule.Config{})
		s, err := schedule.New(recorded, &outbox{}, schedule.Config{Dialect: db.dialect, Horizon: time.Hour, Batch: 10})
		mustSucceed(t, err)

		// Many of every kind: sent and waiting, far, done, overdue, to be sent.
		now := time.Now()
		var tasks []schedule.Task
		for i := range 10_000 {
			x := orderTask(fmt.Sprintf("t%06d", i), now.Add(time.Duration(i%10000-5000)*time.Second))
			x.Queue = fmt.Sprintf("q%d", i%5)
			tasks = append(tasks, x)
		}
		mustSucceed(t, s.ScheduleBatch(t.Context(), nil, tasks))
		ms := now.UnixMilli()
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ? WHERE due_at < ?", ms, ms)
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET resend_at = due_at + 120000 WHERE due_at >= ? AND due_at < ?", ms, ms+4000_000)
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET resend_at = 1 WHERE id IN ('t009000', 't009001')")
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET resend_at = NULL WHERE id IN ('t008002', 't008003')")
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = 1 WHERE id IN ('t009500', 't009501')")
		db.mustExec(t, map[schedule.Dialect]string{
			schedule.PostgreSQL: "ANALYZE rabbitdelay_tasks", schedule.MySQL: "ANALYZE TABLE rabbitdelay_tasks", schedule.SQLite: "ANALYZE",
		}[db.dialect])

		rec.take()
		for name, do := range map[string]func(ctx context.Context) error{
			"relay and sweep": func(ctx context.Context) error { return s.Run(ctx) },
			"cancel":          func(ctx context.Context) error { return s.Cancel(ctx, nil, "t009999") },
			"reschedule":      func(ctx context.Context) error { return s.Reschedule(ctx, nil, "t009998", now.Add(90*time.Minute)) },
			"done together":   func(ctx context.Context) error { return doneTogether(ctx, recorded, db.dialect, now) },
			"get":             func(ctx context.Context) error { _, err := s.Get(ctx, nil, "t000001"); return err },
			"list queue": func(ctx context.Context) error {
				return firstOf(s.List(ctx, nil, schedule.Filter{Queue: "q1", Status: schedule.StatusPending, Limit: 20}))
			},
			"list all": func(ctx context.Context) error {
				return firstOf(s.List(ctx, nil, schedule.Filter{Limit: 20, After: tasks[3000].Cursor()}))
			},
			"list prefix": func(ctx context.Context) error {
				return firstOf(s.List(ctx, nil, schedule.Filter{IDPrefix: "t00900", Status: schedule.StatusPending, Limit: 20}))
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			if name == "relay and sweep" {
				done := make(chan error, 1)
				go func() { done <- do(ctx) }()
				eventually(t, "the relay has looked", func() bool {
					return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") == 4
				})
				cancel()
				mustSucceed(t, <-done)
			} else {
				mustSucceed(t, do(ctx))
			}
			cancel()
			checked, together := 0, false
			for _, st := range rec.take() {
				if !strings.Contains(st.query, "rabbitdelay_tasks") {
					continue
				}
				checked++
				together = together || strings.Contains(st.query, "fence") || strings.Contains(st.query, " OR (id")
				db.usesIndex(t, name, st)
			}
			if checked == 0 {
				t.Errorf("%s ran no statement on the table", name)
			}
			if name == "done together" && !together {
				t.Errorf("%s: each alone", name)
			}
		}
	})
}

// doneTogether handles pending tasks that are due, several in one transaction.
func doneTogether(ctx context.Context, db *sql.DB, d schedule.Dialect, now time.Time) error {
	const n = 10
	var first atomic.Int64
	h := schedule.Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error {
		if first.Add(1) <= 2 {
			<-time.After(100 * time.Millisecond) // the others gather meanwhile
		}
		return nil
	}, schedule.WithGroup(2*n), schedule.WithDialect(d))
	errs := make(chan error, n)
	for i := range n {
		go func() {
			errs <- h(ctx, &amqpx.Delivery{ID: fmt.Sprintf("t%06d", 5100+i), Version: 1, Queue: "q0", DueAt: now.Add(time.Hour)})
		}()
	}
	var err error
	for range n {
		err = errors.Join(err, <-errs)
	}
	return err
}

func firstOf(seq func(func(schedule.Task, error) bool)) (err error) {
	seq(func(_ schedule.Task, e error) bool { err = e; return e == nil })
	return err
}

// usesIndex fails the test when the statement reads the table from end to end.
func (b businessDB) usesIndex(t *testing.T, name string, st statement) {
	t.Helper()
	explain := "EXPLAIN "
	if b.dialect == idempotency.SQLite {
		explain = "EXPLAIN QUERY PLAN "
	}
	rows, err := b.QueryContext(t.Context(), explain+st.query, st.args...)
	if err != nil {
		t.Errorf("%s: %s: %v", name, st.query, err)
		return
	}
	defer func() { _ = rows.Close() }()
	cols, err := rows.Columns()
	mustSucceed(t, err)
	var plan []string
	full := false
	for rows.Next() {
		cells := make([]sql.NullString, len(cols))
		dest := make([]any, len(cols))
		for i := range cells {
			dest[i] = &cells[i]
		}
		mustSucceed(t, rows.Scan(dest...))
		line := make([]string, len(cols))
		for i, c := range cells {
			line[i] = cols[i] + "=" + c.String
			switch {
			case b.dialect == idempotency.MySQL && cols[i] == "type" && (c.String == "ALL" || c.String == "index"):
				full = full || !strings.HasPrefix(cells[2].String, "<") // a derived table is small
			case strings.Contains(c.String, "Seq Scan on rabbitdelay_tasks"),
				strings.HasPrefix(c.String, "SCAN rabbitdelay_tasks"):
				full = true
			}
		}
		plan = append(plan, strings.Join(line, " "))
	}
	mustSucceed(t, rows.Err())
	text := strings.Join(plan, "\n")
	want := ""
	switch {
	case strings.Contains(st.query, "resend_at IS NULL AND"):
		want = "rabbitdelay_tasks_claim"
	case strings.Contains(st.query, "fence"):
		want = "rabbitdelay_tasks_pkey"
		if strings.Contains(text, "rabbitdelay_tasks_status") {
			t.Errorf("%s reads all that is pending:\n%s\n%s", name, st.query, text)
		}
	case strings.Contains(st.query, "resend_at <= "):
		want = "rabbitdelay_tasks_resend"
		if b.dialect == idempotency.MySQL {
			want = "rabbitdelay_tasks_claim" // there it holds both
		}
	}
	if !strings.Contains(text, want) {
		t.Errorf("%s does not use %s:\n%s\n%s", name, want, st.query, text)
	}
	if full {
		t.Errorf("%s reads the whole table:\n%s\n%s", name, st.query, text)
	}
}
