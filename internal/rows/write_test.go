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

// Everything that is inserted can be read again.
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
		t.Errorf("got %+v, want %+v", *got, expected)
	}
	if _, err := x.Get(t.Context(), "none"); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a task that does not exist: got %v, want sql.ErrNoRows", err)
	}
}

// If one task of a statement exists, none of its tasks is written, and the existing one is named.
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

// A task that replaces another one has a later version and all of its own columns and tags, and is
// sent again. Its creation time is later, whatever the clock shows.
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
		t.Errorf("got %+v, want %+v", got, expected)
	}
	claims, err := x.number(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE id = 'a' AND resend_at IS NULL AND claimed_until = 0")
	check(t, err)
	want(t, "rows to be claimed", claims, "1")
	x.wantTask("b", Pending, 1)
}

// A statement contains at most 500 rows, and at most 4 MiB of bodies unless it contains only one row.
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
	want(t, "1", sizes(of(1, 0)), "[1]")
	want(t, "500", sizes(of(500, 0)), "[500]")
	want(t, "1001", sizes(of(1001, 0)), "[500 500 1]")
	want(t, "by bytes", sizes(of(5, 2<<20)), "[2 2 1]")
	want(t, "larger than a statement", sizes(of(2, 5<<20)), "[1 1]")
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
	want(t, "with a tag", n, "1200")
}

// A change applies only to a task with the given status, and returns the task's previous status.
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
			t.Errorf("%+v: changed: got %v, want %v", step, changed, step.changed)
		}
		if status != step.status {
			t.Errorf("%+v: the status was %s, want %s", step, status, step.status)
		}
		got := x.get(step.id)
		if !got.DeliverAt.Equal(at(step.due)) {
			t.Errorf("%+v: the task is due at %v, want %v", step, got.DeliverAt, at(step.due))
		}
		if got.Version != step.version {
			t.Errorf("%+v: got version %d, want %d", step, got.Version, step.version)
		}
	}
	if _, _, err := x.Change(t.Context(), "none", Pending, Cancel(start)); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("changing a task that does not exist: got %v, want sql.ErrNoRows", err)
	}
}

// The due time of a rescheduled task stays within the bounds.
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
	want(t, "late", x.get("late").DeliverAt.UnixMilli(), fmt.Sprint(int64(MaxDue)))
	want(t, "early", x.get("early").DeliverAt.UnixMilli(), "0")
}

// meanwhile is a database connection that calls a function after the next statement.
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

// If a change finds no task, and the task appears before the change can report that, the change
// applies to it.
func TestChangeOfATaskThatAppears(t *testing.T) {
	x := newTable(t)
	c, err := x.db.On(t.Context(), &meanwhile{x.db.DB, func() { x.insert(toQ("a", time.Hour)) }})
	check(t, err)
	changed, _, err := c.Change(t.Context(), "a", Pending, Cancel(start))
	check(t, err)
	if !changed {
		t.Error("the task was not changed, want it cancelled")
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
	want(t, "the last", status, Cancelled)
	if status, err = x.Status(t.Context(), "none"); status != "" || err != nil {
		t.Errorf("status of an unknown id: got %q, %v, want an empty string and no error", status, err)
	}
}

// Within uses a caller's transaction. Given a database, it begins a transaction, and rolls it back after an error.
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
			t.Errorf("%s: got %v, want %v", name, err, failed)
		}
		if status, err := x.Status(t.Context(), name); status != "" || err != nil {
			t.Errorf(`%s: got %q, %v, want "" and no error`, name, status, err)
		}
		check(t, run(func(c Conn) error { _, err := c.Insert(t.Context(), []*Task{toQ(name, 0)}, start, Refuse); return err }))
		x.wantTask(name, Pending, 1)
	}
	err := x.db.Within(t.Context(), x.Conn.Conn.(sqldb.DB), func(c Conn) error {
		return x.db.Within(t.Context(), c.Conn, func(inner Conn) error {
			if inner.Conn != c.Conn {
				t.Error("Within in a transaction began another transaction, want the same one")
			}
			return nil
		})
	})
	check(t, err)
}
