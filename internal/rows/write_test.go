package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// All fields of an inserted task can be read again.
func TestInsert(t *testing.T) {
	x := newTable(t)
	given := &Task{Content: Content{
		ID: "a", Exchange: "e", RoutingKey: "k", DeliverAt: at(time.Hour), Body: []byte{0, 255},
		ContentType: "text/plain", Type: "t", CorrelationID: "c", Priority: 3, ExpiresAfter: time.Minute,
		UniqueKey: "u", Headers: map[string]string{"h": "v"}, Tags: []string{"b", "a"},
	}}
	x.insert(given)
	expected := *given
	expected.Version, expected.Status, expected.Tags = 1, Pending, []string{"a", "b"}
	expected.CreatedAt, expected.UpdatedAt = at(0), at(0)
	if got := x.get("a"); !equal(*got, expected) {
		t.Errorf("the inserted task: got %+v, want %+v", *got, expected)
	}
	if _, err := x.Get(t.Context(), "none"); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("Get of a task that does not exist: got %v, want sql.ErrNoRows", err)
	}
}

// If one of the tasks exists, Insert writes none of them, and returns the ids of those that exist.
func TestInsertRefuses(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("b", 0), toQ("d", 0))
	for _, list := range [][]string{{"b"}, {"a", "b", "c", "d"}} {
		var tasks, there []string
		var given []*Task
		for _, id := range list {
			given = append(given, toQ(id, time.Hour))
			if id == "b" || id == "d" {
				there = append(there, id)
			}
		}
		existing, err := x.Insert(t.Context(), given, start, Refuse)
		check(t, err)
		want(t, "existing", existing, fmt.Sprint(there))
		tasks, err = x.texts(t.Context(), "SELECT id FROM rabbitdelay_tasks ORDER BY id")
		check(t, err)
		want(t, "in the table", tasks, "[b d]")
	}
}

// A task that replaces another one has the next version, a later creation time even if the clock is behind, and only
// its own columns and tags. It is sent again.
func TestInsertReplaces(t *testing.T) {
	x := newTable(t)
	old := toQ("a", 0)
	old.Tags, old.Headers, old.Body = []string{"old"}, map[string]string{"h": "v"}, []byte("old")
	x.insert(old, toQ("b", 0))
	x.set("a", "status = 'failed', finished_at = 1, attempts = 3, last_error = 'why', sends = 2, sent_at = 1, resend_at = 1, claimed_until = 9")
	replacement := toE("a", "k", time.Hour)
	replacement.Tags, replacement.Body = []string{"new"}, []byte("new")
	_, err := x.Insert(t.Context(), []*Task{replacement}, start-5, Replace)
	check(t, err)
	expected := &Task{
		Content: Content{ID: "a", Exchange: "e", RoutingKey: "k", DeliverAt: at(time.Hour), Body: []byte("new"), Tags: []string{"new"}},
		Version: 2, Status: Pending, CreatedAt: at(time.Millisecond), UpdatedAt: at(-5 * time.Millisecond),
	}
	if got := x.get("a"); !equal(got, expected) {
		t.Errorf("the replaced task: got %+v, want %+v", got, expected)
	}
	claims, err := x.number(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE id = 'a' AND resend_at IS NULL AND claimed_until = 0")
	check(t, err)
	want(t, "rows to be claimed", claims, "1")
	x.wantTask("b", Pending, 1)
}

// A statement contains at most 500 rows and 4 MiB of bodies.
func TestSplit(t *testing.T) {
	sizes := func(tasks []*Task) (list []int) {
		for _, chunk := range split(tasks) {
			list = append(list, len(chunk))
		}
		return list
	}
	of := func(n, body int) (list []*Task) {
		for range n {
			list = append(list, &Task{Content: Content{Body: make([]byte, body)}})
		}
		return list
	}
	want(t, "1 task", sizes(of(1, 0)), "[1]")
	want(t, "500 tasks", sizes(of(500, 0)), "[500]")
	want(t, "1001 tasks", sizes(of(1001, 0)), "[500 500 1]")
	want(t, "bodies of 2 MiB", sizes(of(5, 2<<20)), "[2 2 1]")
	want(t, "bodies of 5 MiB", sizes(of(2, 5<<20)), "[1 1]")
	x := newTable(t)
	var many []*Task
	for i := range 1200 {
		task := toQ(fmt.Sprintf("%04d", i), 0)
		task.Tags = []string{"a", "b"}
		many = append(many, task)
	}
	x.insert(many...)
	n, err := x.Count(t.Context(), Filter{Tag: "b"})
	check(t, err)
	want(t, "tasks with a tag", n, "1200")
}

// Change changes a task only if it has the wanted status. It returns the task's status before the change.
func TestChange(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", time.Hour), toQ("b", time.Hour))
	x.end("b", Done, start)
	for _, step := range []struct {
		id, want string
		a        Assignment
		changed  bool
		status   string
		due      time.Duration
		version  int64
	}{
		{"a", Pending, DueAt(ms(2*time.Hour), start), true, Pending, 2 * time.Hour, 2},
		{"a", Pending, DueBy(-time.Hour, start), true, Pending, time.Hour, 3},
		{"a", Pending, DueBy(30*time.Minute, start), true, Pending, 90 * time.Minute, 4},
		{"a", Failed, DueAt(start, start), false, Pending, 90 * time.Minute, 4},
		{"b", Pending, Cancel(start), false, Done, time.Hour, 1},
		{"a", Pending, Cancel(start), true, Pending, 90 * time.Minute, 4},
		{"a", Pending, Cancel(start), false, Cancelled, 90 * time.Minute, 4},
		{"a", Cancelled, DueAt(ms(0), start), true, Cancelled, 0, 5},
	} {
		changed, status, err := x.Change(t.Context(), step.id, step.want, step.a)
		check(t, err)
		if changed != step.changed {
			t.Errorf("Change in step %+v: got changed = %t, want %t", step, changed, step.changed)
		}
		if status != step.status {
			t.Errorf("Change in step %+v: got the status %s, want %s", step, status, step.status)
		}
		got := x.get(step.id)
		if !got.DeliverAt.Equal(at(step.due)) {
			t.Errorf("Change in step %+v: got the due time %v, want %v", step, got.DeliverAt, at(step.due))
		}
		if got.Version != step.version {
			t.Errorf("Change in step %+v: got version %d, want %d", step, got.Version, step.version)
		}
	}
	if _, _, err := x.Change(t.Context(), "none", Pending, Cancel(start)); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("changing a task that does not exist: got %v, want sql.ErrNoRows", err)
	}
}

// Rescheduling a task by a duration keeps its due time between 1970 and the latest possible time.
func TestDueByBounds(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("late", 0), toQ("early", 0))
	const forever = 290 * 365 * 24 * time.Hour
	for range 40 {
		_, _, err := x.Change(t.Context(), "late", Pending, DueBy(forever, start))
		check(t, err)
		_, _, err = x.Change(t.Context(), "early", Pending, DueBy(-forever, start))
		check(t, err)
	}
	want(t, "latest due time", x.get("late").DeliverAt.UnixMilli(), fmt.Sprint(int64(MaxDue)))
	want(t, "earliest due time", x.get("early").DeliverAt.UnixMilli(), "0")
}

// meanwhile is a database that calls the function happens after the next statement, to simulate a concurrent change.
type meanwhile struct {
	sqldb.Conn

	happens func()
}

func (m *meanwhile) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	r, err := m.Conn.ExecContext(ctx, query, args...)
	if f := m.happens; f != nil {
		m.happens = nil
		f()
	}
	return r, err
}

// If a task is inserted after Change has not found it, but before Change returns, the change is applied to it.
func TestChangeOfATaskThatAppears(t *testing.T) {
	x := newTable(t)
	c, err := x.db.On(t.Context(), &meanwhile{x.db.DB, func() { x.insert(toQ("a", time.Hour)) }})
	check(t, err)
	changed, _, err := c.Change(t.Context(), "a", Pending, Cancel(start))
	check(t, err)
	if !changed {
		t.Error("Change: got changed = false, want true")
	}
	x.wantTask("a", Cancelled, 1)
}

func TestCancelPending(t *testing.T) {
	x := newTable(t)
	var ids []string
	for i := range 1100 {
		ids = append(ids, fmt.Sprint(i))
		x.insert(toQ(fmt.Sprint(i), 0))
	}
	x.end("7", Done, start)
	n, err := x.CancelPending(t.Context(), append(ids, "none"), start)
	check(t, err)
	want(t, "cancelled", n, "1099")
	status, err := x.Status(t.Context(), "1099")
	check(t, err)
	want(t, "status of the last task", status, Cancelled)
	if status, err = x.Status(t.Context(), "none"); status != "" || err != nil {
		t.Errorf(`Status of an unknown id: got %q, error %v, want "" and no error`, status, err)
	}
}

// Within uses a caller's transaction. If it is called with a database, it starts a transaction, and rolls it back after
// an error.
func TestWithin(t *testing.T) {
	x := newTable(t)
	failed := errors.New("failed")
	for name, run := range map[string]func(do func(Conn) error) error{
		"Within":     func(do func(Conn) error) error { return x.db.Within(t.Context(), x.db.DB, do) },
		"Transact":   func(do func(Conn) error) error { return x.db.Transact(t.Context(), do) },
		"TransactAt": func(do func(Conn) error) error { return x.db.TransactAt(t.Context(), nil, do) },
	} {
		err := run(func(c Conn) error {
			_, err := c.Insert(t.Context(), []*Task{toQ(name, 0)}, start, Refuse)
			return errors.Join(err, c.WriteFirst(t.Context()), failed)
		})
		if !errors.Is(err, failed) {
			t.Errorf("%s: Within returned %v, want %v", name, err, failed)
		}
		if status, err := x.Status(t.Context(), name); status != "" || err != nil {
			t.Errorf(`%s: got the status %q of a rolled back task, error %v, want "" and no error`, name, status, err)
		}
		check(t, run(func(c Conn) error { _, err := c.Insert(t.Context(), []*Task{toQ(name, 0)}, start, Refuse); return err }))
		x.wantTask(name, Pending, 1)
	}
	err := x.db.Within(t.Context(), x.Conn.Conn.(sqldb.DB), func(c Conn) error {
		return x.db.Within(t.Context(), c.Conn, func(inner Conn) error {
			if inner.Conn != c.Conn {
				t.Errorf("Within in a transaction: got the connection %v, want that of the transaction, %v", inner.Conn, c.Conn)
			}
			return nil
		})
	})
	check(t, err)
}
