package taskview

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// many schedules n tasks that are due a second apart: one third for queue a, one for queue b and one for exchange x.
func many(t *testing.T, s *Store, base time.Time, n int) {
	t.Helper()
	tasks := make([]schedule.Task, n)
	for i := range tasks {
		tasks[i] = schedule.Task{ID: fmt.Sprintf("t%04d", i), DeliverAt: base.Add(time.Duration(i) * time.Second)}
		if i%3 == 2 {
			tasks[i].Exchange, tasks[i].RoutingKey = "x", "k"
		} else {
			tasks[i].Queue = []string{"a", "b"}[i%3]
		}
	}
	check(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
}

// listed returns how many tasks List finds with a filter.
func listed(t *testing.T, s *Store, f schedule.Filter) (n int) {
	t.Helper()
	for _, err := range s.List(t.Context(), schedule.NoTx, f) {
		check(t, err)
		n++
	}
	return n
}

// fail marks tasks as failed, each with the given error.
func fail(t *testing.T, db *sql.DB, base time.Time, errors map[string]string) {
	t.Helper()
	for id, text := range errors {
		var n int
		_, err := fmt.Sscanf(id, "t%d", &n)
		check(t, err)
		_, err = db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', last_error = ?, finished_at = ? WHERE id = ?",
			text, base.Add(time.Duration(n)*time.Second).UnixMilli(), id)
		check(t, err)
	}
}

// failures contains errors by task. Tasks t0000, t0003, … are for queue a, t0001, t0004, … for queue b, and t0002,
// t0005, … for exchange x.
var failures = map[string]string{
	"t0000": "payment provider: 503", "t0003": "payment provider: 429", "t0006": "Payment provider: 503", "t0001": "payment provider: 503",
	"t0002": `no such user: "Ann" (3f2a9c1e-0000-4000-8000-0123456789AB)`, "t0005": `no such user: "Bob" (17)`, "t0009": "50% off_season\n\tat line 7",
}

func TestErrorGroups(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	base := time.Now().Truncate(time.Second).Add(time.Hour)
	many(t, s, base, 15)
	fail(t, db, base, failures)
	for order, want := range map[ErrorGroupOrder]string{
		GroupsNewest: "[a:#% off_season at line #:1 a:Payment provider: #:1 x:no such user: … (#):2 a:payment provider: #:2 b:payment provider: #:1]",
		GroupsOldest: "[a:payment provider: #:2 b:payment provider: #:1 x:no such user: … (#):2 a:Payment provider: #:1 a:#% off_season at line #:1]",
		GroupsMost:   "[a:payment provider: #:2 x:no such user: … (#):2 a:#% off_season at line #:1 a:Payment provider: #:1 b:payment provider: #:1]",
	} {
		g, err := s.ErrorGroups(t.Context(), schedule.Filter{}, ErrorGroupOptions{Order: order})
		check(t, err)
		var got []string
		for _, x := range g.Groups {
			got = append(got, fmt.Sprintf("%s%s:%s:%d", x.Queue, x.Exchange, x.ErrorLike, x.Tasks))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("ErrorGroups in order %s:\ngot  %s\nwant %s", order, got, want)
		}
	}
	g, err := s.ErrorGroups(t.Context(), schedule.Filter{Queue: "a"}, ErrorGroupOptions{Sample: 2, Limit: 1})
	check(t, err)
	if !g.More {
		t.Error("ErrorGroups: More: got false, want true, because only 2 of 4 tasks were read")
	}
	if g.Sampled != 2 {
		t.Errorf("ErrorGroups: got %d sampled tasks, want 2", g.Sampled)
	}
	if g.Others != 1 {
		t.Errorf("ErrorGroups: got %d tasks in other groups, want 1", g.Others)
	}
}

// A filter with a group's error finds, counts and changes exactly the tasks in the group.
func TestFilterByError(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	base := time.Now().Truncate(time.Second).Add(time.Hour)
	many(t, s, base, 15)
	fail(t, db, base, failures)
	groups, err := s.ErrorGroups(t.Context(), schedule.Filter{}, ErrorGroupOptions{})
	check(t, err)
	for _, g := range groups.Groups {
		f := schedule.Filter{Status: schedule.StatusFailed, Queue: g.Queue, Exchange: g.Exchange, ErrorLike: g.ErrorLike}
		if n := listed(t, s, f); n != g.Tasks {
			t.Errorf("List with ErrorLike %q: got %d tasks, want %d", g.ErrorLike, n, g.Tasks)
		}
		n, err := s.BulkCount(t.Context(), f, schedule.BulkRevive(base), schedule.BulkOptions{})
		check(t, err)
		if n != int64(g.Tasks) {
			t.Errorf("BulkCount with ErrorLike %q: got %d tasks, want %d", g.ErrorLike, n, g.Tasks)
		}
	}
	for text, want := range map[string]int{"503": 3, "payment": 3, "%": 1, "_": 1, "off season": 0} {
		if n := listed(t, s, schedule.Filter{Error: text}); n != want {
			t.Errorf("List with Error %q: got %d tasks, want %d", text, n, want)
		}
		n, err := s.CountUpTo(t.Context(), schedule.NoTx, schedule.Filter{Error: text}, 2)
		check(t, err)
		if n != int64(want) {
			t.Errorf("CountUpTo with Error %q: got %d tasks, want %d", text, n, want)
		}
		counts, err := s.Count(t.Context(), schedule.NoTx, schedule.Filter{Error: text})
		check(t, err)
		var sum int64
		for _, c := range counts {
			sum += c.Count
		}
		if sum != int64(want) {
			t.Errorf("Count with Error %q: got %d tasks in all queues, want %d", text, sum, want)
		}
	}
	p, err := s.Bulk(t.Context(), schedule.Filter{ErrorLike: "payment provider: 7"}, schedule.BulkRevive(base), schedule.BulkOptions{Batch: 1})
	check(t, err)
	if p.Changed != 3 {
		t.Errorf("Bulk with a group's error: got %d tasks revived, want 3", p.Changed)
	}
	if n := listed(t, s, schedule.Filter{Status: schedule.StatusFailed}); n != len(failures)-3 {
		t.Errorf("after Bulk: got %d failed tasks, want %d", n, len(failures)-3)
	}
}
