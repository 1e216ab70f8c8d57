package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// unique schedules a task with the unique key "k" for the queue "q", and fails the test on an error.
func (s *site) unique(id string, delay time.Duration, u Unique) UniqueResult {
	s.Helper()
	r, err := s.ScheduleUnique(s.Context(), NoTx, Task{ID: id, UniqueKey: "k", Queue: "q", DeliverAt: time.Now().Add(delay), Body: []byte(id)}, u)
	check(s.T, err)
	return r
}

// Each event postpones the task until ten seconds after the event, but not beyond a minute after the first event. With
// one event per second, a task takes effect once a minute, and the last task takes effect ten seconds after the last
// event. The messages of postponed versions have no effect.
func TestDebounce(t *testing.T) {
	onSite(t, Config{}, func(_ *testing.T, s *site) {
		defer s.consume("q", Handler(s.db, s.noted(nil)))()
		var created []time.Duration
		var last time.Duration
		for range 150 {
			r := s.unique("", 10*time.Second, Unique{OnConflict: PushBackPending, MaxWait: time.Minute})
			last = time.Since(s.began)
			if r.Outcome == UniqueCreated {
				created = append(created, last)
			}
			after(time.Second)
		}
		after(time.Minute)
		if len(created) != 3 || len(s.effects) != len(created) {
			s.Fatalf("after the debounced requests: got %d tasks and %d effects, want 3 and 3", len(created), len(s.effects))
		}
		for i, e := range s.effects {
			due := min(created[i]+time.Minute, last+10*time.Second)
			if late := e.at - due; late < 0 || late > time.Second {
				s.Errorf("effect %d was at %v, want at most 1s after %v, when its task was due", i, e.at, due)
			}
		}
	})
}

// A task is not merged with a task that is running under a lease. If the running task fails while another task with its
// key is pending and due before the retry, the other task replaces it.
func TestUniqueUnderLease(t *testing.T) {
	for name, c := range map[string]struct {
		outcome error
		status  Status
	}{
		"done":   {nil, StatusDone},
		"failed": {errors.New("provider is away"), StatusCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, Config{}, func(_ *testing.T, s *site) {
				p := s.provider()
				p.work = func(_ context.Context, d *amqpx.Delivery) error {
					<-time.After(time.Hour)
					if d.ID == "first" {
						return c.outcome
					}
					return nil
				}
				defer s.consume("q", p.handler())()
				s.unique("first", 0, Unique{})
				after(time.Minute)
				if r := s.unique("", 0, Unique{Cooldown: time.Hour}); r.Outcome != UniqueRefused || r.ID != "first" || !r.Until.IsZero() {
					s.Errorf("ScheduleUnique while the task first runs: got %+v, want it refused because of the running task first, without Until", r)
				}
				if r := s.unique("second", 59*time.Minute+500*time.Millisecond, Unique{}); r.Outcome != UniqueCreated {
					s.Errorf("ScheduleUnique before the task first is done: got %+v, want Outcome = %s", r, UniqueCreated)
				}
				after(90 * time.Minute)
				got, err := s.Get(s.Context(), NoTx, "first")
				check(s.T, err)
				if got.Status != c.status || c.outcome != nil && !strings.Contains(got.LastError, c.outcome.Error()) {
					s.Errorf("the task first is %s with the error %q, want %s with the handler's error", got.Status, got.LastError, c.status)
				}
				after(5 * time.Hour)
				s.wantTask("second", StatusDone, 0)
				if n := len(p.calls); n != 2 {
					s.Errorf("the provider got %d calls, want 2, one for each task", n)
				}
			})
		})
	}
}

// A task whose process died is also cancelled in favour of the other task with its key, if its lease expires and its
// message is not redelivered before the other task is due.
func TestUniqueLeaseEnds(t *testing.T) {
	onSite(t, Config{}, func(_ *testing.T, s *site) {
		s.unique("first", 0, Unique{})
		after(time.Second) // otherwise the sweeper's first sweep might find it running
		c, err := s.Store.db.Conn(s.Context())
		check(s.T, err)
		_, err = c.ExecContext(s.Context(), "UPDATE rabbitdelay_tasks SET status = 'running'")
		check(s.T, err)
		s.unique("second", time.Hour, Unique{})
		after(30 * time.Minute)
		s.wantTask("first", StatusRunning, 0)
		after(31 * time.Minute)
		got, err := s.Get(s.Context(), NoTx, "first")
		check(s.T, err)
		if got.Status != StatusCancelled || !strings.Contains(got.LastError, "unique key") {
			s.Errorf(`the task first is %s with the error %q, want cancelled and an error with "unique key"`, got.Status, got.LastError)
		}
		s.wantTask("second", StatusPending, 0)
	})
}

// A handler can schedule the next task with its own unique key in its transaction, with every conflict policy, for a
// queue, for an exchange and under a lease.
func TestHandlerSchedulesItsKey(t *testing.T) {
	for _, u := range []Unique{{}, {OnConflict: ReplacePending}, {OnConflict: PushBackPending, MaxWait: time.Hour}} {
		for name, c := range map[string]struct {
			task  Task
			lease bool
		}{
			"queue":              {task: Task{Queue: "q"}},
			"exchange":           {task: Task{Exchange: "events"}},
			"lease":              {task: Task{Queue: "q"}, lease: true},
			"lease and exchange": {task: Task{Exchange: "events"}, lease: true},
		} {
			t.Run(name+" "+string(u.OnConflict), func(t *testing.T) {
				onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
					note := s.noted(nil)
					next := func(ctx context.Context, ex Executor) error {
						task := c.task
						task.UniqueKey, task.DeliverAt = "k", time.Now().Add(time.Hour)
						r, err := s.ScheduleUnique(ctx, ex, task, u)
						if err == nil && r.Outcome != UniqueCreated {
							err = fmt.Errorf("ScheduleUnique: got %+v, want Outcome = %s", r, UniqueCreated)
						}
						return err
					}
					again := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
						if err := note(ctx, tx, d); err != nil || len(s.effects) > 3 {
							return err
						}
						return next(ctx, tx)
					}
					h := Handler(s.db, again)
					if c.lease {
						h = LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) { return again, nil })
					}
					defer s.consume("q", h)()
					s.exchange("events", "q")
					check(s.T, next(s.Context(), NoTx))
					after(10 * time.Hour)
					if n := len(s.effects); n != 4 {
						s.Errorf("after ten hours: got %d effects, want 4", n)
					}
					n, err := s.CountUpTo(s.Context(), NoTx, Filter{UniqueKey: "k", Status: StatusDone}, 100)
					check(s.T, err)
					if n != 4 {
						s.Errorf("%d tasks are done, want 4", n)
					}
				})
			})
		}
	}
}

// A pending task that has expired will have no effect, so nothing is merged with it.
func TestUniqueExpired(t *testing.T) {
	for _, u := range []Unique{{}, {OnConflict: ReplacePending}, {OnConflict: PushBackPending, MaxWait: time.Hour}} {
		s, _ := closedStore(t)
		past := Task{ID: "past", UniqueKey: "k", Queue: "q", DeliverAt: time.Now().Add(-time.Hour), ExpiresAfter: time.Minute}
		_, err := s.ScheduleUnique(t.Context(), NoTx, past, u)
		check(t, err)
		r, err := s.ScheduleUnique(t.Context(), NoTx, Task{ID: "new", UniqueKey: "k", Queue: "q", DeliverAt: time.Now()}, u)
		check(t, err)
		if r.Outcome != UniqueCreated || r.ID != "new" {
			t.Errorf("policy %q: got %+v, want the task new to be created", u.OnConflict, r)
		}
		if got, err := s.Get(t.Context(), NoTx, "past"); err != nil || got.Status != StatusExpired {
			t.Errorf("policy %q: the task past is %s (error %v), want %s and no error", u.OnConflict, got.Status, err, StatusExpired)
		}
	}
}

// Failed tasks whose unique key belongs to a pending task cannot be revived: not individually, not in bulk, and not by
// requeueing their dead letters. If several failed tasks have the same key and none is pending, the first one is
// revived.
func TestReviveUnique(t *testing.T) {
	s, db := closedStore(t)
	fail := func(id string) {
		t.Helper()
		r, err := s.ScheduleUnique(t.Context(), NoTx, Task{ID: id, UniqueKey: "k", Queue: "q", DeliverAt: time.Now()}, Unique{})
		check(t, err)
		if r.Outcome != UniqueCreated {
			t.Fatalf("ScheduleUnique: got %+v, want Outcome = %v", r, UniqueCreated)
		}
		_, err = db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = ?", id)
		check(t, err)
	}
	for _, id := range []string{"a", "b", "c"} {
		fail(id)
	}
	check(t, s.Schedule(t.Context(), NoTx, Task{ID: "plain", Queue: "q", DeliverAt: time.Now()}))
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = 'plain'")
	check(t, err)
	if p, err := s.Bulk(t.Context(), Filter{}, BulkRevive(time.Now()), BulkOptions{}); err != nil || p.Changed != 2 {
		t.Errorf("%d tasks were revived (error %v), want 2 (a and plain) and no error", p.Changed, err)
	}
	err = s.Revive(t.Context(), NoTx, "b", time.Now())
	if taken, ok := errors.AsType[*uniqueError](err); !ok || taken.pending != "a" || taken.key != "k" || !errors.Is(err, ErrUnique) {
		t.Errorf("Revive of b: got %v, want ErrUnique with the pending task a and the key k", err)
	}
	outcome, why, err := s.RequeueDead(t.Context(), &inspect.DeadLetter{Delivery: &amqpx.Delivery{ID: "b", Version: 1}}, false)
	if outcome != inspect.RequeueStayed || !strings.Contains(why, "unique key k") || err != nil {
		t.Errorf(`RequeueDead of b: got %s, %q, %v, want %s, a reason with "unique key k" and no error`, outcome, why, err, inspect.RequeueStayed)
	}
	check(t, s.Cancel(t.Context(), NoTx, "a"))
	check(t, s.Revive(t.Context(), NoTx, "b", time.Now()))
	var statuses []string
	for task, err := range s.List(t.Context(), NoTx, Filter{UniqueKey: "k"}) {
		check(t, err)
		statuses = append(statuses, task.ID+" "+string(task.Status))
	}
	slices.Sort(statuses)
	if got := strings.Join(statuses, ", "); got != "a cancelled, b pending, c failed" {
		t.Errorf(`tasks with the key k: got %q, want "a cancelled, b pending, c failed"`, got)
	}
}

func TestUniqueRefusals(t *testing.T) {
	s, _ := closedStore(t)
	task := Task{ID: "x", UniqueKey: "k", Queue: "q", DeliverAt: time.Now()}
	for field, c := range map[string]struct {
		change func(*Task)
		u      Unique
	}{
		"OnConflict":   {u: Unique{OnConflict: "throttle"}},
		"MaxWait":      {u: Unique{OnConflict: PushBackPending}},
		"MaxWait ":     {u: Unique{MaxWait: time.Second}},
		"Cooldown":     {u: Unique{Cooldown: -1}},
		"Cooldown ":    {u: Unique{Cooldown: 8 * 24 * time.Hour}},
		"UniqueKey":    {change: func(t *Task) { t.UniqueKey = "" }},
		"UniqueKey ":   {change: func(t *Task) { t.UniqueKey = strings.Repeat("k", 256) }},
		"UniqueKey  ":  {change: func(t *Task) { t.UniqueKey = "k " }},
		"UniqueKey   ": {change: func(t *Task) { t.UniqueKey = "k\x00" }},
		"Queue":        {change: func(t *Task) { t.Queue = "" }},
		"Replace":      {change: func(t *Task) { t.Replace = true }},
		"DeliverAt":    {change: func(t *Task) { t.DeliverAt = time.Time{} }},
	} {
		x := task
		if c.change != nil {
			c.change(&x)
		}
		_, err := s.ScheduleUnique(t.Context(), NoTx, x, c.u)
		if te, ok := errors.AsType[*TaskError](err); !ok || te.Field != strings.TrimSpace(field) {
			t.Errorf("ScheduleUnique with an invalid %s: got %v, want a *TaskError about that field", field, err)
		}
	}
	err := s.Schedule(t.Context(), NoTx, task)
	if te, ok := errors.AsType[*TaskError](err); !ok || te.Field != "UniqueKey" || !strings.Contains(te.Reason, "ScheduleUnique") {
		t.Errorf("Schedule: got %v, want a *TaskError that names ScheduleUnique", err)
	}
	if n, err := s.CountUpTo(t.Context(), NoTx, Filter{}, 100); err != nil || n != 0 {
		t.Errorf("CountUpTo: got %d tasks, error %v, want 0 and no error", n, err)
	}
}
