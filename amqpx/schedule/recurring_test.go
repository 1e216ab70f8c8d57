package schedule

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// calendar is a database with recurring tasks, stores that share a clock, and a consumer that handles due tasks.
type calendar struct {
	t      *testing.T
	db     *sql.DB
	stores []*Store
	now    time.Time
	idle   bool // the consumer handles nothing
}

func newCalendar(t *testing.T, relays int) *calendar {
	t.Helper()
	db, err := sql.Open("sqlite",
		"file:"+filepath.Join(t.TempDir(), "x.db")+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	check(t, Migrate(t.Context(), db))
	c := &calendar{t: t, db: db, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	for range relays {
		s, err := New(db, nil, Config{})
		check(t, err)
		s.goBy(func() time.Time { return c.now })
		c.stores = append(c.stores, s)
	}
	return c
}

func (c *calendar) schedules() RecurringTasks { return c.stores[0].Recurring() }

// look makes a relay plan all recurring tasks that are due for planning, completes the tasks that are due unless c.idle
// is set, and returns the planner's pause.
func (c *calendar) look() time.Duration {
	c.t.Helper()
	pause, err := c.stores[0].planner.PlanAll(c.t.Context())
	check(c.t, err)
	c.consume()
	return pause
}

func (c *calendar) consume() {
	c.t.Helper()
	if !c.idle {
		c.exec("UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ? WHERE queue = 'q' AND exchange = '' AND status = 'pending' AND due_at <= ?",
			c.now.UnixMilli(), c.now.UnixMilli())
	}
}

func (c *calendar) exec(query string, args ...any) int64 {
	c.t.Helper()
	res, err := c.db.ExecContext(c.t.Context(), query, args...)
	check(c.t, err)
	n, err := res.RowsAffected()
	check(c.t, err)
	return n
}

// tasks returns the tasks of one recurring task in order, as "time status".
func (c *calendar) tasks(name string) []string {
	c.t.Helper()
	found, err := c.db.QueryContext(c.t.Context(), "SELECT id, status FROM rabbitdelay_tasks WHERE id LIKE ? ORDER BY id", name+"@%")
	check(c.t, err)
	defer func() { check(c.t, found.Close()) }()
	var list []string
	for found.Next() {
		var id, status string
		check(c.t, found.Scan(&id, &status))
		list = append(list, strings.TrimPrefix(id, name+"@")+" "+status)
	}
	check(c.t, found.Err())
	return list
}

func (c *calendar) expect(name string, want ...string) {
	c.t.Helper()
	if got := c.tasks(name); !slices.Equal(got, want) {
		c.t.Fatalf("at %s: got the tasks\n  %s\nwant\n  %s", c.now.Format(time.RFC3339), strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func toQ() Task { return Task{Queue: "q", Body: []byte("x")} }

// Changes to recurring tasks, including the tasks that they create, take effect with the caller's transaction.
func TestRecurringInTransaction(t *testing.T) {
	c := newCalendar(t, 1)
	x := c.schedules()
	daily := Recurring{Name: "a", Cron: "@daily", Task: toQ()}
	for _, commit := range []bool{false, true} {
		tx, err := c.db.BeginTx(t.Context(), nil)
		check(t, err)
		check(t, x.Add(t.Context(), tx, daily))
		if commit {
			check(t, tx.Commit())
			c.expect("a", "2026-01-02T00:00:00Z pending")
		} else {
			check(t, tx.Rollback())
			c.expect("a")
		}
	}
	tx, err := c.db.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, x.Pause(t.Context(), tx, "a"))
	check(t, tx.Rollback())
	c.expect("a", "2026-01-02T00:00:00Z pending")
}

func TestRecurringChanges(t *testing.T) {
	c := newCalendar(t, 1)
	x, ctx := c.schedules(), t.Context()
	daily := Recurring{Name: "a", Cron: "0 8 * * *", Task: toQ()}
	put := func(r Recurring, want Change) {
		t.Helper()
		if got, err := x.Put(ctx, NoTx, r); err != nil || got != want {
			t.Fatalf("Put: got %s, error %v, want %s and no error", got, err, want)
		}
	}
	put(daily, Created)
	put(daily, Unchanged)
	c.expect("a", "2026-01-02T08:00:00Z pending")
	version := func(id string) int64 {
		t.Helper()
		task, err := c.stores[0].Get(ctx, NoTx, id)
		check(t, err)
		return task.Version
	}

	check(t, x.Pause(ctx, NoTx, "a"))
	c.expect("a", "2026-01-02T08:00:00Z cancelled")
	put(daily, Unchanged) // the Put of a starting program does not resume the task
	c.now = c.now.Add(48 * time.Hour)
	c.look()
	c.expect("a", "2026-01-02T08:00:00Z cancelled")
	check(t, x.Resume(ctx, NoTx, "a"))
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending")

	// A withdrawn task that is created again has a new version, because the broker may still have the message of the
	// old one.
	daily.Task.Body = []byte("other")
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending")
	task, err := c.stores[0].Get(ctx, NoTx, "a@2026-01-04T08:00:00Z")
	check(t, err)
	if string(task.Body) != "other" || task.Version != 2 {
		t.Errorf(`the task has the body %q and version %d, want "other" and 2`, task.Body, task.Version)
	}
	daily.Cron = "0 9 * * *"
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z pending")
	check(t, x.Edit(ctx, NoTx, "a", func(r *Recurring) error { r.Cron = "0 8 * * *"; return nil }))
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending", "2026-01-04T09:00:00Z cancelled")
	if v := version("a@2026-01-04T08:00:00Z"); v != 3 {
		t.Errorf("the task of 4 January, created for the third time, has version %d, want 3", v)
	}

	// A task that a user has cancelled stays cancelled, however the recurring task changes.
	check(t, c.stores[0].Cancel(ctx, NoTx, "a@2026-01-04T08:00:00Z"))
	daily.Cron, daily.Task.Body = "0 8 * * *", []byte("third")
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z cancelled")
	c.now = time.Date(2026, 1, 4, 8, 0, 0, 0, time.UTC)
	c.look()
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z cancelled", "2026-01-05T08:00:00Z pending")

	// Tags are added and removed with the tasks.
	daily.Task.Tags, daily.Task.ExpiresAfter = []string{"blue", "green"}, time.Hour
	put(daily, Changed)
	put(daily, Unchanged)
	task, err = c.stores[0].Get(ctx, NoTx, "a@2026-01-05T08:00:00Z")
	check(t, err)
	if !slices.Equal(task.Tags, daily.Task.Tags) {
		t.Errorf("the task has the tags %v, want %v", task.Tags, daily.Task.Tags)
	}
	if task.ExpiresAfter != time.Hour {
		t.Errorf("the task expires after %v, want 1h", task.ExpiresAfter)
	}
	if task.Version != 2 {
		t.Errorf("the task has version %d, want 2", task.Version)
	}

	// The recurring task is deleted and added again.
	check(t, x.Delete(ctx, NoTx, "a"))
	if _, err := x.Get(ctx, NoTx, "a"); !errors.Is(err, ErrNoSchedule) {
		t.Errorf("Get after Delete: got %v, want ErrNoSchedule", err)
	}
	put(daily, Created)
	if v := version("a@2026-01-05T08:00:00Z"); v != 3 {
		t.Errorf("the task of 5 January, created for the third time, has version %d, want 3", v)
	}
	for _, err := range []error{x.Pause(ctx, NoTx, "none"), x.Delete(ctx, NoTx, "none"), func() error { _, err := x.RunNow(ctx, NoTx, "none"); return err }()} {
		if !errors.Is(err, ErrNoSchedule) {
			t.Errorf("a change of a recurring task that does not exist: got %v, want ErrNoSchedule", err)
		}
	}
}

// If a task is withdrawn while its message is being published, a later confirm does not prevent the task from being
// created again.
func TestRecurringWithdrawnInFlight(t *testing.T) {
	c := newCalendar(t, 1)
	s, x, ctx := c.stores[0], c.schedules(), t.Context()
	check(t, x.Add(ctx, NoTx, Recurring{Name: "a", Cron: "0 8 * * *", Task: toQ()}))
	task, err := s.Get(ctx, NoTx, "a@2026-01-02T08:00:00Z")
	check(t, err)
	check(t, x.Pause(ctx, NoTx, "a"))
	check(t, s.relay.MarkSent(ctx, []*rows.Task{{Content: rows.Content{ID: task.ID}, Version: task.Version}}))
	check(t, x.Resume(ctx, NoTx, "a"))
	c.expect("a", "2026-01-02T08:00:00Z pending")
}

func TestRecurringFire(t *testing.T) {
	c := newCalendar(t, 1)
	x := c.schedules()
	check(t, x.Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "0 8 * * *", Task: toQ(), Overlap: OverlapSkip}))
	check(t, x.Pause(t.Context(), NoTx, "a"))
	id, err := x.RunNow(t.Context(), NoTx, "a")
	check(t, err)
	if id != "a@2026-01-01T12:00:00.000Z" {
		t.Errorf(`the id is %s, want "a@2026-01-01T12:00:00.000Z"`, id)
	}
	c.look()
	c.expect("a", "2026-01-01T12:00:00.000Z done", "2026-01-02T08:00:00Z cancelled")
	if name, at, ok := ParseOccurrence(id); name != "a" || !at.Equal(c.now) || !ok {
		t.Errorf(`ParseOccurrence(%q) = %q, %s, %t, want "a", %s, true`, id, name, at, ok, c.now)
	}
	for _, id := range []string{"a", "a@", "@2026-01-01T12:00:00Z", "a@2026-01-01T12:00:00+01:00", "a@b@2026-01-01T12:00:00Z"} {
		if _, _, ok := ParseOccurrence(id); ok {
			t.Errorf("ParseOccurrence(%q): got ok = true, want false", id)
		}
	}
}

func TestRecurringValidate(t *testing.T) {
	good := func() Recurring { return Recurring{Name: "a", Cron: "@daily", Task: toQ()} }
	check(t, good().Validate())
	for field, spoil := range map[string]func(*Recurring){
		"Name":         func(r *Recurring) { r.Name = "a@b" },
		"Cron":         func(r *Recurring) { r.Every = time.Hour },
		"Every":        func(r *Recurring) { r.Cron, r.Every = "", 1500*time.Millisecond },
		"TimeZone":     func(r *Recurring) { r.TimeZone = "Local" },
		"End":          func(r *Recurring) { r.Start, r.End = time.Unix(2e9, 0), time.Unix(2e9-1, 0) },
		"Jitter":       func(r *Recurring) { r.Jitter = -1 },
		"Misfire":      func(r *Recurring) { r.Misfire = "some" },
		"MisfireLimit": func(r *Recurring) { r.MisfireLimit = -1 },
		"Overlap":      func(r *Recurring) { r.Misfire, r.Overlap = MisfireAll, OverlapSkip },
		"Queue":        func(r *Recurring) { r.Task.Queue = "" },
	} {
		r := good()
		spoil(&r)
		var se *RecurringError
		if err := r.Validate(); !errors.As(err, &se) || se.Field != field || !errors.Is(err, ErrRecurring) {
			t.Errorf("wrong %s: got %v, want a *RecurringError about that field", field, err)
		}
	}
}

func TestRecurringJitter(t *testing.T) {
	r := Recurring{Name: "a", Cron: "@hourly", Jitter: 10 * time.Minute, Task: toQ()}
	list, err := r.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 1000)
	check(t, err)
	var sum time.Duration
	for _, o := range list {
		d := o.DueAt.Sub(o.At)
		if d < 0 || d > 10*time.Minute {
			t.Fatalf("%s is delayed by %v, want 0 to 10m", o.ID, d)
		}
		sum += d
	}
	if mean := sum / 1000; mean < 4*time.Minute || mean > 6*time.Minute {
		t.Errorf("the mean jitter is %v, want 4m to 6m", mean)
	}
	c := newCalendar(t, 1)
	check(t, c.schedules().Add(t.Context(), NoTx, r))
	want, err := r.Next(c.now, 1)
	check(t, err)
	task, err := c.stores[0].Get(t.Context(), NoTx, want[0].ID)
	check(t, err)
	if !task.DeliverAt.Equal(want[0].DueAt) {
		t.Errorf("the task is due at %s, want %s, as returned by Next", task.DeliverAt, want[0].DueAt)
	}
}

func TestRecurringApply(t *testing.T) {
	c := newCalendar(t, 1)
	x := c.schedules()
	apply := func(want Applied, list ...Recurring) {
		t.Helper()
		got, err := x.Apply(t.Context(), NoTx, list)
		check(t, err)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("Apply: got %v, want %v", got, want)
		}
	}
	a := Recurring{Name: "a", Cron: "@daily", Task: toQ()}
	b := Recurring{Name: "b", Every: time.Hour, Task: toQ()}
	check(t, x.Add(t.Context(), NoTx, Recurring{Name: "own", Cron: "@daily", Task: toQ()}))
	apply(Applied{Created: []string{"a", "b"}}, a, b)
	apply(Applied{Unchanged: []string{"a", "b"}}, a, b)
	a.Cron = "@hourly"
	apply(Applied{Changed: []string{"a"}, Unlisted: []string{"b"}}, a)
	c.expect("b", "2026-01-01T13:00:00Z pending") // an unlisted recurring task continues
	if _, err := x.Apply(t.Context(), NoTx, []Recurring{b, a, b}); !errors.Is(err, ErrRecurring) {
		t.Errorf("Apply of a list with a repeated name: got %v, want ErrRecurring", err)
	}
}
