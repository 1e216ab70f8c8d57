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

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// calendar is a database with recurring tasks, several relays under one clock, and
// a consumer that does what is due.
type calendar struct {
	t      *testing.T
	db     *sql.DB
	stores []*Store
	now    time.Time
	idle   bool // the consumer rests
}

func newCalendar(t *testing.T, relays int) *calendar {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "x.db")+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
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

func (c *calendar) schedules() Schedules { return c.stores[0].Schedules() }

// look has a relay plan what is due.
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
		c.exec("UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ? WHERE queue = 'q' AND exchange = '' AND status = 'pending' AND due_at <= ?", c.now.UnixMilli(), c.now.UnixMilli())
	}
}

// pass advances the time by d, and looks as often as a relay does.
func (c *calendar) pass(d time.Duration) {
	c.t.Helper()
	for end := c.now.Add(d); c.now.Before(end); {
		pause := c.look()
		c.now = c.now.Add(min(pause, time.Second, end.Sub(c.now)))
	}
	c.look()
}

func (c *calendar) exec(query string, args ...any) int64 {
	c.t.Helper()
	res, err := c.db.ExecContext(c.t.Context(), query, args...)
	check(c.t, err)
	n, err := res.RowsAffected()
	check(c.t, err)
	return n
}

// tasks are the tasks in their order, as "instant status", of one recurring task.
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
		c.t.Fatalf("at %s the tasks are\n  %s\nexpected\n  %s", c.now.Format(time.RFC3339), strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (c *calendar) get(name string) Recurring {
	c.t.Helper()
	r, err := c.schedules().Get(c.t.Context(), NoTx, name)
	check(c.t, err)
	return r
}

func toQ() Task { return Task{Queue: "q", Body: []byte("x")} }

func TestRecurringIsMadeAhead(t *testing.T) {
	c := newCalendar(t, 1)
	check(t, c.schedules().Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "0 8 * * *", TimeZone: "Europe/Berlin", Task: toQ()}))
	c.expect("a", "2026-01-02T07:00:00Z pending") // in the transaction that added it
	c.now = time.Date(2026, 1, 2, 6, 59, 59, 0, time.UTC)
	c.pass(2 * time.Second)
	c.expect("a", "2026-01-02T07:00:00Z done", "2026-01-03T07:00:00Z pending")

	check(t, c.schedules().Add(t.Context(), NoTx, Recurring{Name: "b", Every: 20 * time.Second, Task: toQ()}))
	c.expect("b", "2026-01-02T07:00:21Z pending", "2026-01-02T07:00:41Z pending", "2026-01-02T07:01:01Z pending")
	c.pass(10 * time.Minute)
	if list := c.tasks("b"); len(list) < 31 || len(list) > 33 {
		t.Errorf("%d tasks in ten minutes", len(list))
	}
	if err := c.schedules().Add(t.Context(), NoTx, Recurring{Name: "b", Every: time.Second, Task: toQ()}); !errors.Is(err, ErrScheduleExists) {
		t.Errorf("a second of that name: %v", err)
	}
}

// What a caller does takes effect with the caller's transaction, tasks included.
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
			t.Fatalf("put: %s, %v; expected %s", got, err, want)
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
	put(daily, Unchanged) // a start of the program does not resume it
	c.now = c.now.Add(48 * time.Hour)
	c.look()
	c.expect("a", "2026-01-02T08:00:00Z cancelled")
	check(t, x.Resume(ctx, NoTx, "a"))
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending")

	// What is withdrawn and comes back has a new version: the message of the old one
	// may be with the broker.
	daily.Task.Body = []byte("other")
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending")
	task, err := c.stores[0].Get(ctx, NoTx, "a@2026-01-04T08:00:00Z")
	check(t, err)
	if string(task.Body) != "other" || task.Version != 2 {
		t.Errorf("body %s, version %d", task.Body, task.Version)
	}
	daily.Cron = "0 9 * * *"
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z pending")
	check(t, x.Edit(ctx, NoTx, "a", func(r *Recurring) error { r.Cron = "0 8 * * *"; return nil }))
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z pending", "2026-01-04T09:00:00Z cancelled")
	if v := version("a@2026-01-04T08:00:00Z"); v != 3 {
		t.Errorf("version %d", v)
	}

	// What somebody cancelled stays cancelled, whatever becomes of the schedule.
	check(t, c.stores[0].Cancel(ctx, NoTx, "a@2026-01-04T08:00:00Z"))
	daily.Cron, daily.Task.Body = "0 8 * * *", []byte("third")
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z cancelled")
	c.now = time.Date(2026, 1, 4, 8, 0, 0, 0, time.UTC)
	c.look()
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-04T08:00:00Z cancelled", "2026-01-04T09:00:00Z cancelled", "2026-01-05T08:00:00Z pending")

	// Tags come and go with the tasks.
	daily.Task.Tags, daily.Task.ExpiresAfter = []string{"blue", "green"}, time.Hour
	put(daily, Changed)
	put(daily, Unchanged)
	if task, err := c.stores[0].Get(ctx, NoTx, "a@2026-01-05T08:00:00Z"); err != nil || !slices.Equal(task.Tags, daily.Task.Tags) || task.ExpiresAfter != time.Hour || task.Version != 2 {
		t.Errorf("tags %v, version %d, %v", task.Tags, task.Version, err)
	}

	// Deleted and added again.
	check(t, x.Delete(ctx, NoTx, "a"))
	if _, err := x.Get(ctx, NoTx, "a"); !errors.Is(err, ErrNoSchedule) {
		t.Errorf("got %v", err)
	}
	put(daily, Created)
	if v := version("a@2026-01-05T08:00:00Z"); v != 3 {
		t.Errorf("version %d", v)
	}
	for _, err := range []error{x.Pause(ctx, NoTx, "none"), x.Delete(ctx, NoTx, "none"), func() error { _, err := x.Fire(ctx, NoTx, "none"); return err }()} {
		if !errors.Is(err, ErrNoSchedule) {
			t.Errorf("got %v", err)
		}
	}
}

// A task may be on its way to the broker while it is withdrawn. That its publish is
// confirmed then does not keep it from coming back.
func TestRecurringWithdrawnInFlight(t *testing.T) {
	c := newCalendar(t, 1)
	s, x, ctx := c.stores[0], c.schedules(), t.Context()
	check(t, x.Add(ctx, NoTx, Recurring{Name: "a", Cron: "0 8 * * *", Task: toQ()}))
	task, err := s.Get(ctx, NoTx, "a@2026-01-02T08:00:00Z")
	check(t, err)
	check(t, x.Pause(ctx, NoTx, "a"))
	check(t, s.relay.MarkSent(ctx, []*rows.Task{{ID: task.ID, Version: task.Version}}))
	check(t, x.Resume(ctx, NoTx, "a"))
	c.expect("a", "2026-01-02T08:00:00Z pending")
}

func TestRecurringFire(t *testing.T) {
	c := newCalendar(t, 1)
	x := c.schedules()
	check(t, x.Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "0 8 * * *", Task: toQ(), Overlap: OverlapSkip}))
	check(t, x.Pause(t.Context(), NoTx, "a"))
	id, err := x.Fire(t.Context(), NoTx, "a")
	check(t, err)
	if id != "a@2026-01-01T12:00:00.000Z" {
		t.Errorf("the id is %s", id)
	}
	c.look()
	c.expect("a", "2026-01-01T12:00:00.000Z done", "2026-01-02T08:00:00Z cancelled")
	if name, at, ok := ParseOccurrence(id); name != "a" || !at.Equal(c.now) || !ok {
		t.Errorf("parsed as %s, %s, %t", name, at, ok)
	}
	for _, id := range []string{"a", "a@", "@2026-01-01T12:00:00Z", "a@2026-01-01T12:00:00+01:00", "a@b@2026-01-01T12:00:00Z"} {
		if _, _, ok := ParseOccurrence(id); ok {
			t.Errorf("%s is taken for an occurrence", id)
		}
	}
}

// Three days without a relay, from Friday noon to Monday noon. What was a task
// already counts as what was not.
func TestRecurringOutage(t *testing.T) {
	hours := func(from, to int, status string) []string {
		var list []string
		for h := from; h <= to; h++ {
			list = append(list, time.Date(2026, 1, 2, h, 0, 0, 0, time.UTC).Format("2006-01-02T15:04:05Z")+" "+status)
		}
		return list
	}
	before := append(hours(9, 11, "done"), hours(12, 12, "done")...)
	ahead := hours(85, 85, "pending") // Monday, 13:00
	for _, tt := range []struct {
		name  string
		r     Recurring
		after []string
	}{
		{"skip", Recurring{Misfire: MisfireSkip}, slices.Concat(before, hours(13, 13, "cancelled"), hours(84, 84, "done"), ahead)},
		{"once", Recurring{}, slices.Concat(before, hours(13, 13, "cancelled"), hours(83, 84, "done"), ahead)},
		{"all", Recurring{Misfire: MisfireAll}, slices.Concat(before, hours(13, 84, "done"), ahead)},
		{"all, at most 10", Recurring{Misfire: MisfireAll, MisfireLimit: 10}, slices.Concat(before, hours(13, 13, "done"), hours(74, 84, "done"), ahead)},
		{"skip, no overlap", Recurring{Misfire: MisfireSkip, Overlap: OverlapSkip}, slices.Concat(before, hours(13, 13, "cancelled"), hours(84, 84, "done"), ahead)},
		{"once, no overlap", Recurring{Overlap: OverlapSkip}, slices.Concat(before, hours(13, 13, "cancelled"), hours(84, 84, "done"), ahead)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCalendar(t, 1)
			c.now = time.Date(2026, 1, 2, 8, 30, 0, 0, time.UTC)
			r := tt.r
			r.Name, r.Cron, r.Task = "a", "@hourly", toQ()
			check(t, c.schedules().Add(t.Context(), NoTx, r))
			for c.now.Before(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)) {
				c.now = c.now.Add(5 * time.Minute)
				c.look()
				c.now = c.now.Add(2 * time.Second)
				c.look()
				c.now = c.now.Add(-2 * time.Second)
			}
			// 12:00:30, so that the last one is not missed, only late.
			c.now = time.Date(2026, 1, 5, 12, 0, 30, 0, time.UTC)
			c.idle = true
			c.look()
			c.idle = false
			c.pass(5 * time.Second)
			c.expect("a", tt.after...)
			if got := c.get("a"); tt.name != "all" && got.SkippedAt.IsZero() {
				t.Error("nothing says that some were left out")
			}
		})
	}
}

// A handler that is still at the last one, or retries it, keeps the next ones from
// beginning, and only those.
func TestRecurringOverlap(t *testing.T) {
	c := newCalendar(t, 1)
	check(t, c.schedules().Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "*/10 * * * *", Task: toQ(), Overlap: OverlapSkip}))
	c.expect("a", "2026-01-01T12:10:00Z pending")
	c.idle = true
	c.pass(35 * time.Minute)
	c.expect("a", "2026-01-01T12:10:00Z pending")
	if at := c.get("a").SkippedAt; !at.Equal(time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)) {
		t.Errorf("the last that was left out is %s", at)
	}
	c.idle = false
	c.pass(2 * time.Minute) // to 12:37
	c.expect("a", "2026-01-01T12:10:00Z done", "2026-01-01T12:40:00Z pending")
	// One that failed for good does not end it.
	c.exec("UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = 'a@2026-01-01T12:40:00Z'")
	c.now = time.Date(2026, 1, 1, 12, 40, 1, 0, time.UTC)
	c.look()
	c.expect("a", "2026-01-01T12:10:00Z done", "2026-01-01T12:40:00Z failed", "2026-01-01T12:50:00Z pending")
}

// A row that another program wrote wrongly says why, and holds up nothing.
func TestRecurringForeignRows(t *testing.T) {
	c := newCalendar(t, 1)
	insert := func(name, columns, values string) {
		c.exec("INSERT INTO rabbitdelay_schedules (name, queue, " + columns + ") VALUES ('" + name + "', 'q', " + values + ")")
	}
	insert("good", "cron", "'0 8 * * *'")
	insert("interval", "every_ms, starts_at", "3600000, 1767261600000")
	for name, row := range map[string][3]string{
		"bad cron":    {"cron", "'0 8 * *'", "expected 5 fields"},
		"bad zone":    {"cron, time_zone", "'@daily', 'Mars/Phobos'", "is unknown"},
		"bad headers": {"cron, headers", "'@daily', '[1]'", "expected a JSON object of strings"},
		"bad tags":    {"cron, tags", "'@daily', '{}'", "expected a JSON array of strings"},
		"bad every":   {"every_ms", "1500", "expected whole seconds"},
		"long every":  {"every_ms", "9223372036854775807", "expected at most"},
		"big":         {"cron, body", "'@daily', zeroblob(16777217)", "16777217 bytes, expected at most"},
		"far":         {"cron, starts_at", "'@daily', 9223372036854775807", "the year 9999"},
		"long key":    {"cron, content_type", "'@daily', '" + strings.Repeat("x", 300) + "'", "300 bytes"},
	} {
		insert(name, row[0], row[1])
		c.look()
		if got := c.get(name); !strings.Contains(got.LastError, row[2]) || !got.NextAt.IsZero() {
			t.Errorf("%s: %q, next at %s", name, got.LastError, got.NextAt)
		}
		c.expect(name)
	}
	c.expect("good", "2026-01-02T08:00:00Z pending")
	c.expect("interval", "2026-01-01T13:00:00Z pending")
	// Nobody looks at them again and again.
	if pause := c.look(); pause < time.Second {
		t.Errorf("the next look is in %v", pause)
	}
	// A program that mends it raises the version and says look.
	c.exec("UPDATE rabbitdelay_schedules SET cron = '0 9 * * *', version = version + 1, plan_at = 0 WHERE name IN ('bad cron', 'good')")
	c.look()
	c.expect("bad cron", "2026-01-02T09:00:00Z pending")
	c.expect("good", "2026-01-02T08:00:00Z cancelled", "2026-01-02T09:00:00Z pending")
	if got := c.get("bad cron").LastError; got != "" {
		t.Errorf("it still says %s", got)
	}
	// What no relay could read, the table refuses.
	for _, row := range []string{"'a@b', 'q', '@daily'", "'a', '', '@daily'", "'a', 'q', ''", "x'00', 'q', '@daily'"} {
		if _, err := c.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_schedules (name, queue, cron) VALUES ("+row+")"); err == nil {
			t.Errorf("%s is taken", row)
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
		"End":          func(r *Recurring) { r.Start, r.End = time.Unix(2, 0), time.Unix(1, 0) },
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
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestRecurringJitter(t *testing.T) {
	r := Recurring{Name: "a", Cron: "@hourly", Jitter: 10 * time.Minute, Task: toQ()}
	list, err := r.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 1000)
	check(t, err)
	var sum time.Duration
	for _, o := range list {
		d := o.DeliverAt.Sub(o.At)
		if d < 0 || d > 10*time.Minute {
			t.Fatalf("%s is delayed by %v", o.ID, d)
		}
		sum += d
	}
	if mean := sum / 1000; mean < 4*time.Minute || mean > 6*time.Minute {
		t.Errorf("the mean is %v", mean)
	}
	c := newCalendar(t, 1)
	check(t, c.schedules().Add(t.Context(), NoTx, r))
	want, err := r.Next(c.now, 1)
	check(t, err)
	task, err := c.stores[0].Get(t.Context(), NoTx, want[0].ID)
	check(t, err)
	if !task.DeliverAt.Equal(want[0].DeliverAt) {
		t.Errorf("due at %s, Next says %s", task.DeliverAt, want[0].DeliverAt)
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
			t.Errorf("got %v, expected %v", got, want)
		}
	}
	a := Recurring{Name: "a", Cron: "@daily", Task: toQ()}
	b := Recurring{Name: "b", Every: time.Hour, Task: toQ()}
	check(t, x.Add(t.Context(), NoTx, Recurring{Name: "own", Cron: "@daily", Task: toQ()}))
	apply(Applied{Created: []string{"a", "b"}}, a, b)
	apply(Applied{Unchanged: []string{"a", "b"}}, a, b)
	a.Cron = "@hourly"
	apply(Applied{Changed: []string{"a"}, Unlisted: []string{"b"}}, a)
	c.expect("b", "2026-01-01T13:00:00Z pending") // it goes on
	if _, err := x.Apply(t.Context(), NoTx, []Recurring{b, a, b}); !errors.Is(err, ErrRecurring) {
		t.Errorf("the same name twice: %v", err)
	}
}
