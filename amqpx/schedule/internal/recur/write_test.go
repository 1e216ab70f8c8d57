package recur

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// A withdrawn task that is created again has a new version, because the broker may still have the message of the old
// version.
func TestWrites(t *testing.T) {
	c := newCalendar(t, 1)
	ctx := t.Context()
	put := func(s rows.Schedule, want Change) {
		t.Helper()
		check(t, c.planners[0].Check(&s))
		check(t, c.within(func(p *Planner, tx rows.Conn) error {
			got, err := p.Put(ctx, tx, &s)
			if got != want {
				t.Errorf("Put: got the change %d, want %d", got, want)
			}
			return err
		}))
	}
	version := func(id string, want int64) {
		t.Helper()
		check(t, c.within(func(_ *Planner, tx rows.Conn) error {
			task, err := tx.Get(ctx, id)
			if err == nil && task.Version != want {
				t.Errorf("task %s has version %d, want %d", id, task.Version, want)
			}
			return err
		}))
	}
	daily := rows.Schedule{Name: "a", Cron: "0 8 * * *", Task: toQ()}
	put(daily, Created)
	put(daily, Unchanged)
	c.expect("a", "2026-01-02T08:00:00Z pending")
	version("a@2026-01-02T08:00:00Z", 1)
	c.setPaused("a", true)
	c.expect("a", "2026-01-02T08:00:00Z cancelled")
	put(daily, Unchanged) // writing the same schedule does not resume it
	if !c.get("a").Paused {
		t.Error("after Put of an unchanged, paused recurring task: got Paused = false, want true")
	}
	c.setPaused("a", false)
	version("a@2026-01-02T08:00:00Z", 2)
	daily.Cron = "0 9 * * *"
	put(daily, Changed)
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-02T09:00:00Z pending")
	check(t, c.within(func(p *Planner, tx rows.Conn) error {
		return p.Edit(ctx, tx, "a", func(s *rows.Schedule) error { s.Cron = "0 8 * * *"; return nil })
	}))
	c.expect("a", "2026-01-02T08:00:00Z pending", "2026-01-02T09:00:00Z cancelled")
	version("a@2026-01-02T08:00:00Z", 3) // withdrawn twice
	check(t, c.within(func(p *Planner, tx rows.Conn) error { return p.Delete(ctx, tx, "a") }))
	c.expect("a", "2026-01-02T08:00:00Z cancelled", "2026-01-02T09:00:00Z cancelled")
}

// An edit that fails or that would make the row invalid changes nothing.
func TestEditFails(t *testing.T) {
	c := newCalendar(t, 1)
	c.add(rows.Schedule{Name: "a", Cron: "0 8 * * *", Task: toQ()})
	failed := errors.New("failed")
	for name, change := range map[string]func(s *rows.Schedule) error{
		"an error":              func(*rows.Schedule) error { return failed },
		"an invalid expression": func(s *rows.Schedule) error { s.Cron = "odd"; return nil },
		"no destination":        func(s *rows.Schedule) error { s.Task.Queue = ""; return nil },
	} {
		err := c.within(func(p *Planner, tx rows.Conn) error { return p.Edit(t.Context(), tx, "a", change) })
		if err == nil {
			t.Errorf("Edit with %s: got no error, want one", name)
		}
		if got := c.get("a"); got.Cron != "0 8 * * *" || got.Version != 1 {
			t.Errorf(`after Edit with %s: got the expression %q and version %d, want "0 8 * * *" and 1`, name, got.Cron, got.Version)
		}
	}
	c.expect("a", "2026-01-02T08:00:00Z pending")
}

// A recurring task is refused if the sender would refuse its tasks.
func TestCheckSendable(t *testing.T) {
	c := newCalendar(t, 1)
	c.planners[0].Sendable = func(*rows.Task) *rows.FieldError { return &rows.FieldError{Field: "Queue", Reason: "is not listed"} }
	err := c.tryAdd(rows.Schedule{Name: "a", Cron: "@daily", Task: toQ()})
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("adding a schedule whose task cannot be sent: got %v, want an *Error", err)
	}
	if e.Problems[0].Reason != "is not listed" {
		t.Errorf(`adding a schedule whose task cannot be sent: got %v, want the first problem to have the reason "is not listed"`, err)
	}
}

// Reading or changing a row that does not exist returns ErrNone.
func TestNone(t *testing.T) {
	c := newCalendar(t, 1)
	for name, do := range map[string]func(p *Planner, tx rows.Conn) error{
		"Get":       func(_ *Planner, tx rows.Conn) error { _, err := Get(t.Context(), tx, "none"); return err },
		"Edit":      func(p *Planner, tx rows.Conn) error { return p.Edit(t.Context(), tx, "none", nil) },
		"SetPaused": func(p *Planner, tx rows.Conn) error { return p.SetPaused(t.Context(), tx, "none", true) },
		"Delete":    func(p *Planner, tx rows.Conn) error { return p.Delete(t.Context(), tx, "none") },
		"Extra":     func(p *Planner, tx rows.Conn) error { _, err := p.Extra(t.Context(), tx, "none", c.now); return err },
	} {
		if err := c.within(do); !errors.Is(err, ErrNone) {
			t.Errorf("%s of a row that does not exist: got %v, want ErrNone", name, err)
		}
	}
}

// Extra creates an additional occurrence at the given time. The id of its task contains that time with milliseconds.
func TestFired(t *testing.T) {
	c := newCalendar(t, 1)
	c.add(rows.Schedule{Name: "a", Cron: "0 8 * * *", Task: toQ()})
	run := func() (task *rows.Task, err error) {
		err = c.within(func(p *Planner, tx rows.Conn) (err error) {
			task, err = p.Extra(t.Context(), tx, "a", c.now.Add(250*time.Millisecond))
			return err
		})
		return task, err
	}
	task, err := run()
	check(t, err)
	if task.ID != "a@2026-01-01T12:00:00.250Z" {
		t.Errorf(`the id is %s, want "a@2026-01-01T12:00:00.250Z"`, task.ID)
	}
	if !task.DeliverAt.Equal(c.now.Add(250 * time.Millisecond)) {
		t.Errorf("the task is due at %s, want %s", task.DeliverAt, c.now.Add(250*time.Millisecond))
	}
	c.planners[0].MaxBody = 0
	if _, err = run(); err == nil {
		t.Error("Extra with a body above MaxBody: got no error, want one")
	}
}
