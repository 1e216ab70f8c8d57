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

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// closedStore returns a store without a sender, whose database is closed when the test ends.
func closedStore(t *testing.T) (*Store, *sql.DB) {
	t.Helper()
	s, db := openStore(t, nil, Config{})
	t.Cleanup(func() { _ = db.Close() })
	return s, db
}

// many schedules n tasks: a third each for queue a, queue b and exchange x, due a second apart, with alternating
// headers, and every fifth with the tags vip and campaign-7.
func many(t *testing.T, s *Store, base time.Time, n int) {
	t.Helper()
	tasks := make([]Task, n)
	for i := range tasks {
		tasks[i] = Task{
			ID: fmt.Sprintf("t%04d", i), DeliverAt: base.Add(time.Duration(i) * time.Second),
			Headers: map[string]string{"tenant": []string{"blue", `gr"een`, "50%_off"}[i%3]},
		}
		if i%3 == 2 {
			tasks[i].Exchange, tasks[i].RoutingKey = "x", "k"
		} else {
			tasks[i].Queue = []string{"a", "b"}[i%3]
		}
		if i%5 == 0 {
			tasks[i].Tags = []string{"vip", "campaign-7"}
		}
	}
	check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
}

func dues(t *testing.T, s *Store, f Filter) map[string]time.Time {
	t.Helper()
	m := map[string]time.Time{}
	for task, err := range s.List(t.Context(), NoTx, f) {
		check(t, err)
		m[task.ID] = task.DeliverAt
	}
	return m
}

func TestFilterByTagHeaderAndExchange(t *testing.T) {
	s, _ := closedStore(t)
	many(t, s, time.Now().Add(time.Hour), 30)
	for name, c := range map[string]struct {
		f    Filter
		want int
	}{
		"tag":                 {Filter{Tag: "vip"}, 6},
		"no such tag":         {Filter{Tag: "vi"}, 0},
		"tag and queue":       {Filter{Tag: "vip", Queue: "a"}, 2},
		"exchange":            {Filter{Exchange: "x"}, 10},
		"header":              {Filter{Header: "tenant", HeaderValue: "blue"}, 10},
		"header with a quote": {Filter{Header: "tenant", HeaderValue: `gr"een`}, 10},
		"header, no pattern":  {Filter{Header: "tenant", HeaderValue: "50%_off"}, 10},
		"header, a pattern":   {Filter{Header: "tenant", HeaderValue: "50%"}, 0},
	} {
		if got := len(dues(t, s, c.f)); got != c.want {
			t.Errorf("filter by %s: got %d tasks, want %d", name, got, c.want)
		}
	}
	got, err := s.Get(t.Context(), NoTx, "t0005")
	check(t, err)
	if !slices.Equal(got.Tags, []string{"campaign-7", "vip"}) {
		t.Errorf(`the task has the tags %q, want ["campaign-7" "vip"]`, got.Tags)
	}
	// The task is replaced by one with other tags, and then deleted. Its tags must be replaced and deleted as well.
	got.Tags = []string{"other"}
	check(t, s.Schedule(t.Context(), NoTx, replacing(got.Task)))
	if n := len(dues(t, s, Filter{Tag: "vip"})); n != 5 {
		t.Errorf("%d tasks have the replaced tag, want 5", n)
	}
	check(t, s.Cancel(t.Context(), NoTx, "t0005"))
	_, err = s.Bulk(t.Context(), Filter{Tag: "other"}, BulkDelete(), BulkOptions{})
	check(t, err)
	got.Tags = nil
	check(t, s.Schedule(t.Context(), NoTx, got.Task))
	if n := len(dues(t, s, Filter{Tag: "other"})); n != 0 {
		t.Errorf("%d new tasks have the tags of a deleted one, want 0", n)
	}
	for _, tags := range [][]string{{""}, {"a", "a"}, {"a "}, {strings.Repeat("x", 101)}, make([]string, 21)} {
		if err := s.Schedule(t.Context(), NoTx, Task{ID: "bad", Queue: "q", DeliverAt: time.Now(), Tags: tags}); !errors.Is(err, ErrInvalidTask) {
			t.Errorf("tags %q: got %v, want ErrInvalidTask", tags, err)
		}
	}
}

func TestBulk(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for name, c := range map[string]struct {
		action BulkAction
		f      Filter
		opts   BulkOptions
		want   int64
		check  func(t *testing.T, s *Store)
	}{
		"cancel by queue": {BulkCancel(), Filter{Queue: "a"}, BulkOptions{Batch: 7}, 34, func(t *testing.T, s *Store) {
			if n := len(dues(t, s, Filter{Status: StatusCancelled})); n != 34 {
				t.Errorf("%d tasks are cancelled, want 34", n)
			}
		}},
		"move by a day": {BulkRescheduleBy(24 * time.Hour), Filter{}, BulkOptions{Batch: 7}, 100, func(t *testing.T, s *Store) {
			for id, due := range dues(t, s, Filter{}) {
				var i int
				fmt.Sscanf(id, "t%d", &i)
				if want := base.Add(24*time.Hour + time.Duration(i)*time.Second); !due.Equal(want) {
					t.Errorf("%s is due at %v, want %v", id, due, want)
				}
			}
		}},
		"move by three seconds": {BulkRescheduleBy(3 * time.Second), Filter{}, BulkOptions{Batch: 2}, 100, func(t *testing.T, s *Store) {
			if due := dues(t, s, Filter{})["t0050"]; !due.Equal(base.Add(53 * time.Second)) {
				t.Errorf("t0050 is due at %v, want %v", due, base.Add(53*time.Second))
			}
		}},
		"move back": {BulkRescheduleBy(-3 * time.Second), Filter{}, BulkOptions{Batch: 2}, 100, func(t *testing.T, s *Store) {
			if due := dues(t, s, Filter{})["t0050"]; !due.Equal(base.Add(47 * time.Second)) {
				t.Errorf("t0050 is due at %v, want %v", due, base.Add(47*time.Second))
			}
		}},
		"move to": {BulkReschedule(base.Add(50 * time.Second)), Filter{Tag: "vip"}, BulkOptions{Batch: 3}, 19, func(t *testing.T, s *Store) {
			for id, due := range dues(t, s, Filter{Tag: "vip"}) {
				if !due.Equal(base.Add(50 * time.Second)) {
					t.Errorf("%s is due at %v, want %v", id, due, base.Add(50*time.Second))
				}
			}
		}},
		"run, spread": {BulkRunNow(), Filter{
			DueFrom: base.Add(10 * time.Second), DueTo: base.Add(60 * time.Second),
		}, BulkOptions{Batch: 10, Spread: time.Minute}, 50, func(t *testing.T, s *Store) {
			instants := map[time.Time]bool{}
			for _, due := range dues(t, s, Filter{DueTo: base}) {
				instants[due] = true
			}
			if len(instants) != 5 {
				t.Errorf("tasks that were made due: got %d different due times, want 5, one for each batch", len(instants))
			}
		}},
		"limit": {BulkCancel(), Filter{}, BulkOptions{Batch: 7, Limit: 20}, 20, func(*testing.T, *Store) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := closedStore(t)
			many(t, s, base, 100)
			count, err := s.BulkCount(t.Context(), c.f, c.action, BulkOptions{})
			check(t, err)
			if c.opts.Limit == 0 && count != c.want {
				t.Errorf("BulkCount = %d, want %d", count, c.want)
			}
			var last BulkProgress
			c.opts.Progress = func(p BulkProgress) { last = p }
			got, err := s.Bulk(t.Context(), c.f, c.action, c.opts)
			check(t, err)
			if got.Changed != c.want || last.Changed != c.want || len(placeOf(t, got).Held) > 0 {
				t.Errorf("Bulk changed %d tasks, reported %d and left out %d, want %d, %d and 0",
					got.Changed, last.Changed, len(placeOf(t, got).Held), c.want, c.want)
			}
			c.check(t, s)
			if c.action.by == 0 && c.opts.Limit == 0 {
				again, err := s.Bulk(t.Context(), c.f, c.action, BulkOptions{Spread: c.opts.Spread})
				check(t, err)
				if name != "run, spread" && again.Changed != 0 {
					t.Errorf("a second run changed %d tasks, want 0", again.Changed)
				}
			}
		})
	}
}

// If a bulk RunNow is spread over a period, it makes each task due once, even if a second bulk change continues the
// first. Tasks that are due within the period are not changed.
func TestBulkRunNowSpreadOnce(t *testing.T) {
	fired := func(t *testing.T, s *Store) {
		t.Helper()
		for task, err := range s.List(t.Context(), NoTx, Filter{}) {
			check(t, err)
			if task.Version != 2 || time.Until(task.DeliverAt) > 30*time.Minute {
				t.Errorf("%s has version %d and is due at %v, want version 2 and at most 30m from now", task.ID, task.Version, task.DeliverAt)
			}
		}
	}
	t.Run("continued", func(t *testing.T) {
		s, _ := closedStore(t)
		many(t, s, time.Now().Add(time.Hour), 100)
		for range 2 {
			o := BulkOptions{Batch: 5, Spread: 30 * time.Minute, Limit: 50}
			n, err := s.BulkCount(t.Context(), Filter{}, BulkRunNow(), o)
			check(t, err)
			got, err := s.Bulk(t.Context(), Filter{}, BulkRunNow(), o)
			check(t, err)
			if n != 50 || got.Changed != 50 {
				t.Errorf("BulkCount returned %d and Bulk changed %d tasks, want 50 and 50", n, got.Changed)
			}
		}
		fired(t, s)
	})
	t.Run("due within the period", func(t *testing.T) {
		s, _ := closedStore(t)
		many(t, s, time.Now().Add(time.Minute), 100) // due 60 to 159 s from now
		o := BulkOptions{Batch: 1, Spread: 30 * time.Minute}
		n, err := s.BulkCount(t.Context(), Filter{}, BulkRunNow(), o)
		check(t, err)
		got, err := s.Bulk(t.Context(), Filter{}, BulkRunNow(), o)
		check(t, err)
		if n != 0 || got.Changed != 0 {
			t.Errorf("BulkCount returned %d and Bulk changed %d tasks, want 0 and 0, because all are due within the period", n, got.Changed)
		}
	})
}

// A revived task has a new version, so that the message of the old version has no effect, and gets all its attempts
// again.
func TestBulkRenews(t *testing.T) {
	s, db := closedStore(t)
	many(t, s, time.Now().Add(time.Hour), 10)
	_, err := db.ExecContext(t.Context(),
		"UPDATE rabbitdelay_tasks SET status = 'failed', attempts = 5, last_error = 'no', finished_at = 1, resend_at = 1, sends = 3")
	check(t, err)
	if _, err := s.Bulk(t.Context(), Filter{Status: StatusPending}, BulkRevive(time.Now()), BulkOptions{}); !errors.Is(err, ErrConfig) {
		t.Errorf("reviving pending tasks: got %v, want ErrConfig", err)
	}
	got, err := s.Bulk(t.Context(), Filter{}, BulkRevive(time.Now()), BulkOptions{})
	check(t, err)
	if got.Changed != 10 {
		t.Errorf("%d tasks were revived, want 10", got.Changed)
	}
	for task, err := range s.List(t.Context(), NoTx, Filter{}) {
		check(t, err)
		if task.Status != StatusPending || task.Version != 2 || task.Attempts != 0 || task.Sends != 0 || task.LastError != "" || !task.FinishedAt.IsZero() {
			t.Errorf(`a revived task: got %+v, want Status = %v, Version = 2, Attempts = 0, Sends = 0, LastError = "" and FinishedAt zero`, task, StatusPending)
		}
	}
}

// An interrupted bulk change that reschedules by a duration can be continued after its last batch, and then reschedules
// each task once.
func TestBulkContinues(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for _, by := range []time.Duration{5 * time.Second, -5 * time.Second} {
		s, _ := closedStore(t)
		many(t, s, base, 100)
		var after Cursor
		runs := 0
		for {
			ctx, cancel := context.WithCancel(t.Context())
			batches := 0
			p, err := s.Bulk(ctx, Filter{}, BulkRescheduleBy(by), BulkOptions{Batch: 9, After: after, Progress: func(BulkProgress) {
				if batches++; batches == 2 {
					cancel()
				}
			}})
			cancel()
			runs++
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) || p.Changed != 18 {
				t.Fatalf("Bulk: got the error %v after %d changes, want context.Canceled after 18", err, p.Changed)
			}
			after = p.Place
		}
		if runs < 3 {
			t.Fatalf("the change took %d calls of Bulk, want at least 3", runs)
		}
		for id, due := range dues(t, s, Filter{}) {
			var i int
			fmt.Sscanf(id, "t%d", &i)
			if want := base.Add(by + time.Duration(i)*time.Second); !due.Equal(want) {
				t.Errorf("rescheduled by %v: %s is due at %v, want %v", by, id, due, want)
			}
		}
	}
}

// placeOf returns the parsed place at which a bulk change can be continued.
func placeOf(t *testing.T, p BulkProgress) rows.BulkPlace {
	t.Helper()
	place, err := rows.ParseBulkPlace(string(p.Place))
	check(t, err)
	return place
}

// A bulk change that reschedules tasks by a duration returns to tasks that were changed concurrently when it first
// reached them. If there are too many of them to remember, it returns to them immediately.
func TestBulkComesBack(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for _, n := range []int{3, maxHeld + 20, 150} {
		s, db := closedStore(t)
		many(t, s, base, 400)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		var most int
		batches := 0
		o := BulkOptions{Batch: 150, Progress: func(p BulkProgress) {
			place := placeOf(t, p)
			most = max(most, len(place.Held))
			if batches++; batches == 1 { // Bulk has already read which tasks to change
				_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET version = version + 1 WHERE id >= 't0150' AND id < ?", fmt.Sprintf("t%04d", 150+n))
				check(t, err)
			}
			if place.ID == "t0299" && len(place.Held) <= maxHeld {
				cancel()
			}
		}}
		p, err := s.Bulk(ctx, Filter{}, BulkRescheduleBy(-5*time.Second), o)
		if held := len(placeOf(t, p).Held); !errors.Is(err, context.Canceled) || held != min(n, maxHeld) || most != n {
			t.Fatalf("Bulk: got %d remembered tasks in the end, at most %d at a time, and the error %v, want %d, %d and context.Canceled",
				held, most, err, min(n, maxHeld), n)
		}
		last, err := s.Bulk(t.Context(), Filter{}, BulkRescheduleBy(-5*time.Second), BulkOptions{After: p.Place})
		check(t, err)
		if p.Changed+last.Changed != 400 {
			t.Errorf("%d and then %d tasks were changed, want 400 in total", p.Changed, last.Changed)
		}
		for id, due := range dues(t, s, Filter{}) {
			var i int
			fmt.Sscanf(id, "t%d", &i)
			if want := base.Add(time.Duration(i-5) * time.Second); !due.Equal(want) {
				t.Errorf("%s is due at %v, want %v", id, due, want)
			}
		}
	}
}

// A bulk change returns to concurrently changed tasks in batches rather than in one transaction per task.
func TestBulkComesBackInBatches(t *testing.T) {
	s, db := closedStore(t)
	many(t, s, time.Now().Add(time.Hour), 2000)
	steps := 0
	p, err := s.Bulk(t.Context(), Filter{}, BulkRescheduleBy(time.Hour), BulkOptions{Progress: func(BulkProgress) {
		if steps++; steps == 1 { // Bulk has already read which tasks to change
			_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET version = version + 1")
			check(t, err)
		}
	}})
	check(t, err)
	// Usually 8 transactions: 4 batches, and the remembered tasks after 3 of them and at the end.
	if p.Changed != 2000 || steps > 10 {
		t.Errorf("%d tasks were changed in %d transactions, want 2000 in at most 10", p.Changed, steps)
	}
}

func TestBulkRefuses(t *testing.T) {
	s, _ := closedStore(t)
	for name, c := range map[string]struct {
		f Filter
		a BulkAction
		o BulkOptions
	}{
		"no action":       {},
		"no time":         {a: BulkReschedule(time.Time{})},
		"no duration":     {a: BulkRescheduleBy(0)},
		"pending deleted": {f: Filter{Status: StatusPending}, a: BulkDelete()},
		"limit of List":   {f: Filter{Limit: 3}, a: BulkCancel()},
		"batch":           {a: BulkCancel(), o: BulkOptions{Batch: 5001}},
		"spread a cancel": {a: BulkCancel(), o: BulkOptions{Spread: time.Second}},
		"spread a shift":  {a: BulkRescheduleBy(time.Second), o: BulkOptions{Spread: time.Second}},
		"after":           {a: BulkRescheduleBy(time.Second), o: BulkOptions{After: "x"}},
		"too far":         {a: BulkReschedule(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))},
	} {
		if _, err := s.Bulk(t.Context(), c.f, c.a, c.o); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: Bulk returned %v, want ErrConfig", name, err)
		}
	}
}
