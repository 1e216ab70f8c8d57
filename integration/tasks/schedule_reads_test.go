package tasks_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// statement is a recorded SQL statement and its arguments.
type statement struct {
	query string
	args  []any
}

// recorder opens connections that record the statements that they run.
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

// fullConn has the methods that the connections of all three drivers have.
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

// PrepareContext passes a statement on to a driver that prepares statements itself. mysql does that only if ExecContext
// or QueryContext has returned ErrSkip.
func (c recording) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if p, ok := c.fullConn.(driver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return c.Prepare(query)
}

// envTasks is the number of tasks that TestScheduleReads fills a table with.
const envTasks = "RABBITDELAY_TEST_TASKS"

func tasksToRead(t *testing.T) int {
	t.Helper()
	text := os.Getenv(envTasks)
	if text == "" {
		return 16_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 4000 {
		t.Fatalf("%s is %q, want a number of 4000 or more", envTasks, text)
	}
	return n
}

// No statement reads more of the table when the table contains four times as many tasks, whether or
// not the database has statistics about their distribution.
func TestScheduleReads(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []bool{false, true} {
		t.Run(fmt.Sprintf("analyzed=%t", analyzed), func(t *testing.T) {
			oneDatabase(t, func(t *testing.T, db businessDB) {
				r := newReads(t, db)
				n := tasksToRead(t)
				few := r.stage(t, 0, n/4, analyzed)
				many := r.stage(t, n/4, n, analyzed)
				for name, before := range few {
					after := many[name]
					if !analyzed && (name == "list of a prefix" || name == "count of a status, bounded") {
						continue // which index is better depends on the data, so the planner needs the statistics
					}
					if db.dialect == schedule.MySQL && name == movingAction {
						continue // to return a page, MySQL sorts all tasks that are due at the same time
					}
					t.Logf("%-24s reads %4d, and %4d with four times as many tasks", name, before.reads, after.reads)
					// A B-tree that grew may be one level higher. The sweep reads up to 200 rows, which are closer
					// together in a smaller table.
					allowed := before.reads*3/2 + 30
					if name == "relay and sweep" {
						allowed = max(allowed, 400)
					}
					if after.reads > allowed {
						t.Errorf("%s reads %d with %d tasks and %d with %d tasks, want at most %d:\n%s\n%v",
							name, before.reads, n/4, after.reads, n, allowed, after.query, after.args)
					}
				}
			})
		})
	}
}

// reads is a store and a recorder of its statements.
type reads struct {
	db       businessDB
	rec      *recorder
	recorded *sql.DB
	now      time.Time
}

func newReads(t *testing.T, db businessDB) *reads {
	t.Helper()
	newStore(t, db, nil, schedule.Config{})
	if db.dialect == schedule.PostgreSQL { // autovacuum would analyze the table at some point
		db.mustExec(t, "ALTER TABLE rabbitdelay_tasks SET (autovacuum_enabled = false)")
	}
	rec := &recorder{open: func() (driver.Conn, error) { return db.Driver().Open(db.dsn) }}
	recorded := sql.OpenDB(rec)
	t.Cleanup(func() { _ = recorded.Close() })
	return &reads{db, rec, recorded, time.Now().Truncate(time.Millisecond)}
}

// cost is the most expensive statement of an action and the amount that it reads.
type cost struct {
	statement
	reads int64
}

// stage fills the table with the tasks from first to last, and measures every action on it.
func (r *reads) stage(t *testing.T, first, last int, analyzed bool) map[string]cost {
	t.Helper()
	r.fill(t, first, last)
	if analyzed {
		r.db.mustExec(t, map[schedule.Dialect]string{
			schedule.PostgreSQL: "ANALYZE rabbitdelay_tasks", schedule.MySQL: "ANALYZE TABLE rabbitdelay_tasks", schedule.SQLite: "ANALYZE",
		}[r.db.dialect])
	}
	costs := map[string]cost{}
	for _, a := range r.actions(t, last) {
		r.rec.take()
		if err := a.do(); err != nil {
			t.Fatalf("%s: got %v, want no error", a.name, err)
		}
		if r.db.dialect == schedule.PostgreSQL { // whose scans would also read dead row versions
			r.db.mustExec(t, "VACUUM rabbitdelay_tasks")
		}
		for _, st := range r.rec.take() {
			if !strings.Contains(st.query, "rabbitdelay_task") || (r.db.dialect == schedule.MySQL && strings.HasPrefix(st.query, "INSERT")) {
				continue // an INSERT cannot be repeated there
			}
			if c := (cost{st, r.db.reads(t, st)}); c.reads >= costs[a.name].reads {
				costs[a.name] = c
			}
		}
		if costs[a.name].query == "" && !strings.Contains(a.name, "schedule") && a.name != "replace" {
			t.Errorf("%s ran no statement on the table", a.name)
		}
	}
	return costs
}

// fill adds tasks of every kind. Most of them are finished, or wait for their due time, in the broker or in the table.
// The number of tasks that the actions work on is the same in each stage.
func (r *reads) fill(t *testing.T, first, last int) {
	t.Helper()
	ms, day, second := r.now.UnixMilli(), int64(24*60*60*1000), int64(1000)
	var rows [][]any
	add := func(id, queue, exchange string, due int64, status schedule.Status, finished, resend any) {
		rows = append(rows, []any{id, queue, exchange, due, string(status), finished, resend})
		if len(rows) == 500 {
			r.insert(t, rows)
			rows = nil
		}
	}
	for i := first; i < last; i++ {
		id, queue, spread := fmt.Sprintf("t%08d", i), fmt.Sprint("q", i/20%5), int64(i)*7919%(20*day/second)*second
		switch kind := i % 20; {
		case kind < 6:
			add(id, queue, "", ms-spread, schedule.StatusDone, ms-day, nil)
		case kind == 6: // failed tasks are kept longer, so these are not purged yet
			add(id, queue, "", ms-spread, schedule.StatusFailed, ms-8*day, nil)
		case kind == 7:
			add(id, queue, "", ms+spread, schedule.StatusCancelled, ms-day, nil)
		case kind < 12:
			add(id, queue, "", ms+60*second+spread/1000, schedule.StatusPending, nil, ms+180*second+spread/1000)
		case kind == 12:
			add(id, "", "events", ms+2*day+spread, schedule.StatusPending, nil, nil)
		case kind < 16:
			add(id, queue, "", ms+2*day+spread, schedule.StatusPending, nil, nil)
		default: // all remaining tasks are due at the same time
			add(id, queue, "", ms+30*day, schedule.StatusPending, nil, nil)
		}
	}
	for i := range 100 {
		queue := fmt.Sprint("q", i%5)
		add(fmt.Sprintf("send-%d-%d", last, i), queue, "", ms+int64(i), schedule.StatusPending, nil, nil)
		add(fmt.Sprintf("again-%d-%d", last, i), queue, "", ms-day+int64(i), schedule.StatusPending, nil, ms-int64(i))
		add(fmt.Sprintf("act-%d-%d", last, i), queue, "", r.soon(last).UnixMilli()+int64(i), schedule.StatusPending, nil, nil)
	}
	for i := range 20 {
		queue := fmt.Sprint("q", i%5)
		add(fmt.Sprintf("old-%d-%d", last, i), queue, "", ms-10*day, schedule.StatusDone, ms-10*day, nil)
	}
	r.insert(t, rows)
}

// soon returns the due time of the tasks that the actions of a stage work on. No other tasks are due at this time.
func (r *reads) soon(stage int) time.Time {
	return r.now.Add(25*24*time.Hour + time.Duration(stage)*10*time.Millisecond)
}

func (r *reads) insert(t *testing.T, rows [][]any) {
	t.Helper()
	var args []any
	for _, row := range rows {
		args = append(args, row...)
	}
	r.db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, exchange, due_at, status, finished_at, resend_at) VALUES "+
		strings.Repeat("(?, ?, ?, ?, ?, ?, ?), ", len(rows)-1)+"(?, ?, ?, ?, ?, ?, ?)", args...)
}

const movingAction = "move a queue's tasks"

type action struct {
	name string
	do   func() error
}

// actions returns the actions of a stage on its tasks.
func (r *reads) actions(t *testing.T, stage int) []action {
	t.Helper()
	s, err := schedule.New(r.recorded, &outbox{}, schedule.Config{Dialect: r.db.dialect, Batch: 20})
	suite.MustSucceed(t, err)
	view, err := taskview.New(r.recorded, schedule.Config{Dialect: r.db.dialect})
	suite.MustSucceed(t, err)
	ctx := t.Context()
	act := func(i int) string { return fmt.Sprintf("act-%d-%d", stage, i) }
	ids := func(from, to int) (list []string) {
		for i := from; i < to; i++ {
			list = append(list, act(i))
		}
		return list
	}
	list := func(f schedule.Filter) func() error {
		return func() error {
			f.Limit = 20
			for _, err := range s.List(ctx, schedule.NoTx, f) {
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	after := func(due time.Time, id string) schedule.Cursor {
		return schedule.Filter{}.CursorOf(schedule.TaskRow{Task: schedule.Task{DeliverAt: due, ID: id}})
	}
	sameInstant := r.now.Add(30 * 24 * time.Hour)
	soon := r.soon(stage)
	done := schedule.Handler(r.recorded, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }, schedule.WithDialect(r.db.dialect))
	fails := schedule.Handler(r.recorded, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return errors.New("boom") }, schedule.WithDialect(r.db.dialect))
	delivery := func(id string) *amqpx.Delivery {
		return &amqpx.Delivery{ID: id, Version: 1, Attempt: 1, MaxAttempts: 9, Queue: "q0", DueAt: soon.Add(time.Hour)}
	}
	return []action{
		{"relay and sweep", func() error { return r.relay(t, stage) }},
		{"schedule", func() error { return s.Schedule(ctx, schedule.NoTx, orderTask(fmt.Sprint("new-", stage), soon)) }},
		{"schedule many", func() error {
			return s.ScheduleBatch(ctx, schedule.NoTx, []schedule.Task{orderTask(fmt.Sprint("new-a-", stage), soon), orderTask(fmt.Sprint("new-b-", stage), soon)})
		}},
		{"replace", func() error { return s.Schedule(ctx, schedule.NoTx, replacing(orderTask(act(0), soon))) }},
		{"cancel", func() error { return s.Cancel(ctx, schedule.NoTx, act(1)) }},
		{"cancel many", func() error { _, err := s.CancelBatch(ctx, schedule.NoTx, ids(2, 12)); return err }},
		{"reschedule", func() error { return s.Reschedule(ctx, schedule.NoTx, act(12), soon) }},
		{"handle", func() error { return done(ctx, delivery(act(13))) }},
		{"handle, and fail", func() error { _ = fails(ctx, delivery(act(14))); return nil }},
		{"handle together", func() error { return r.together(ctx, ids(20, 30), delivery) }},
		{"get", func() error { _, err := s.Get(ctx, schedule.NoTx, act(0)); return err }},
		{"list", list(schedule.Filter{})},
		{"list after", list(schedule.Filter{After: after(soon, act(50))})},
		{
			"list after, at one time",
			list(schedule.Filter{Status: schedule.StatusPending, After: after(sameInstant, fmt.Sprintf("t%08d", stage-100))}),
		},
		{"list of a queue, at one time", list(schedule.Filter{Queue: "q1", After: after(sameInstant, fmt.Sprintf("t%08d", stage-100))})},
		{"list of a queue", list(schedule.Filter{Queue: "q1"})},
		{"list of a status", list(schedule.Filter{Status: schedule.StatusFailed})},
		{"list of a queue's status", list(schedule.Filter{Queue: "q1", Status: schedule.StatusPending})},
		{"list of a time", list(schedule.Filter{DueFrom: soon, DueTo: soon.Add(time.Second)})},
		{"list of a queue's time", list(schedule.Filter{Queue: "q2", DueFrom: soon, DueTo: soon.Add(time.Second)})},
		{"list of a prefix", list(schedule.Filter{IDPrefix: fmt.Sprintf("act-%d-1", stage)})},
		{"count of a queue's time", func() error {
			_, err := s.Count(ctx, schedule.NoTx, schedule.Filter{Queue: "q2", DueFrom: soon, DueTo: soon.Add(time.Second)})
			return err
		}},
		{"histogram of a time", func() error {
			_, err := view.Histogram(ctx, schedule.Filter{Status: schedule.StatusPending}, soon, time.Second, 10)
			return err
		}},
		{"count of a status, bounded", func() error {
			_, err := s.CountUpTo(ctx, schedule.NoTx, schedule.Filter{Status: schedule.StatusPending, DueFrom: r.now.Add(48 * time.Hour)}, 50)
			return err
		}},
		{"count of a queue, bounded", func() error { _, err := s.CountUpTo(ctx, schedule.NoTx, schedule.Filter{Queue: "q1"}, 50); return err }},
		{"how tasks ended, of a minute with none", func() error {
			// No task has ever finished in this interval. A busy InnoDB still reads purged rows for a while, so an interval
			// whose tasks were purged would not do.
			_, err := view.CompletionStats(ctx, r.now.Add(-239*time.Hour), time.Minute, 1)
			return err
		}},
		{"tasks that are tried again", func() error { _, err := view.CountRetried(ctx, 5); return err }},
		{"count of finished ones, bounded", func() error {
			_, err := view.CountFinished(ctx, schedule.StatusDone, r.now.Add(-24*time.Hour), r.now.Add(-23*time.Hour), 20)
			return err
		}},
		{"backlog", func() error { _, err := s.Backlog(ctx, []time.Duration{time.Minute, 24 * time.Hour}, 50); return err }},
		{movingAction, func() error {
			_, err := s.Bulk(ctx, schedule.Filter{Queue: "q3", DueFrom: sameInstant},
				schedule.BulkRescheduleBy(time.Millisecond), schedule.BulkOptions{Batch: 2, Limit: 4})
			return err
		}},
		{"purge", func() error { _, err := s.Purge(ctx, schedule.Retention{Batch: 20}); return err }},
	}
}

// relay runs a store until it has sent some tasks and resent some. It leaves other tasks, so that the statements that
// claim them can be measured.
func (r *reads) relay(t *testing.T, stage int) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out outbox
	out.whole = func([]amqpx.Message) error {
		first, again := out.sentOf(fmt.Sprint("send-", stage)), out.sentOf(fmt.Sprint("again-", stage))
		if first >= 40 && again >= 20 {
			cancel()
		}
		return nil
	}
	s, err := schedule.New(r.recorded, &out, schedule.Config{
		Retention: schedule.Retention{Batch: 20}, Dialect: r.db.dialect, Batch: 20, Workers: 1,
		PollInterval: time.Millisecond, SweepInterval: time.Millisecond,
	})
	suite.MustSucceed(t, err)
	return s.Run(ctx)
}

// sentOf counts the messages with the prefix in their id. The caller holds the lock.
func (o *outbox) sentOf(prefix string) (n int) {
	for _, m := range o.sent {
		if strings.HasPrefix(m.ID, prefix) {
			n++
		}
	}
	return n
}

// together handles the tasks concurrently, several of them in one transaction.
func (r *reads) together(ctx context.Context, ids []string, delivery func(id string) *amqpx.Delivery) error {
	var first atomic.Int64
	h := schedule.Handler(r.recorded, func(context.Context, *sql.Tx, *amqpx.Delivery) error {
		if first.Add(1) <= 2 {
			<-time.After(100 * time.Millisecond) // in the meantime, the others form a group
		}
		return nil
	}, schedule.WithGroup(2*len(ids)), schedule.WithDialect(r.db.dialect))
	return errors.Join(together(len(ids), func(i int) error { return h(ctx, delivery(ids[i])) })...)
}
