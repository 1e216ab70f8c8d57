package demo

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// honest returns the state after a run without errors. Of ten orders, those with even numbers are paid and the others
// cancelled. Of ten posts, 1 to 5 are published, 6 to 9 are cancelled, and 10 was rolled back.
func honest(t *testing.T) (*stage, *strings.Builder) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	out := &strings.Builder{}
	s := &stage{
		Program: program.New(&term.Terminal{Stdout: out, Stderr: io.Discard}), Options: Options{Orders: 10, Posts: 10},
		name: "rabbitdelay-demo-test", cfg: &config.Config{}, strategy: "bucket", version: "4.3.6",
	}
	s.orders, s.posts = &orders{stage: s}, &posts{stage: s}
	t.Cleanup(func() {
		if err := s.clear(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := s.openDatabase(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.orders.duplicates.Store(3)
	s.posts.scheduled.Store(9)
	s.posts.rolledBack.Store(1)
	for i := 1; i <= 10; i++ {
		order := fmt.Sprintf("order-%d", i)
		s.must(t, "INSERT INTO orders (id, status, due_ms) VALUES (?, 'cancelled', ?)", order, 1000+i)
		s.must(t, "INSERT INTO rabbitdelay_processed (scope, message_id, outcome, processed_at) VALUES ('q', ?, 'done', 0)", order)
		s.must(t, "INSERT INTO cancellations VALUES (?, ?)", order, 1000+i)
		post := fmt.Sprintf("post-%d", i)
		s.must(t, "INSERT INTO posts (id, status, due_ms) VALUES (?, 'cancelled', ?)", post, 1000+i)
		s.must(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at) VALUES (?, 'q', 0, 'cancelled', 0)", post)
		s.must(t, "INSERT INTO publications VALUES (?, ?)", post, 1000+i)
	}
	for _, query := range []string{
		"UPDATE orders SET status = 'paid', paid_ms = 900 WHERE due_ms % 2 = 0",
		"DELETE FROM cancellations WHERE at_ms % 2 = 0",
		"UPDATE posts SET status = 'scheduled', moved = due_ms % 2, run_early = due_ms = 1004 WHERE due_ms <= 1005",
		"UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 0 WHERE id IN ('post-1', 'post-2', 'post-3', 'post-4', 'post-5')",
		"DELETE FROM publications WHERE at_ms > 1005",
		"DELETE FROM posts WHERE id = 'post-10'",
		"DELETE FROM rabbitdelay_tasks WHERE id = 'post-10'",
	} {
		s.must(t, query)
	}
	return s, out
}

func (s *stage) must(t *testing.T, query string, args ...any) {
	t.Helper()
	if err := s.exec(t.Context(), s.db, query, args...); err != nil {
		t.Fatalf("query %s: %v", query, err)
	}
}

func TestLedgerAsJSON(t *testing.T) {
	s, out := honest(t)
	s.JSON = true
	s.orders.late.Add(time.UnixMilli(1007), time.UnixMilli(1000))
	if err := s.showLedger(t.Context()); err != nil {
		t.Error(err)
	}
	s.Posts = 0
	if err := s.showLedger(t.Context()); err != nil {
		t.Error(err)
	}
	orders := `{"orders":10,"paid":5,"cancelled":5,"early":0,"lost":0,"duplicates_injected":3,"effects_twice":0,` +
		`"lateness_ms":{"p50":7,"p99":7,"max":7},"strategy":"bucket","broker":"4.3.6","database":"sqlite"`
	posts := `,"posts":{"scheduled":9,"rolled_back":1,"moved":3,"cancelled":4,"run_early":1,"published":5,` +
		`"early":0,"lost":0,"published_twice":0,"published_although_cancelled":0,` +
		`"stale_stopped":0,"cancelled_stopped":0,"duplicates_stopped":0,"changes_too_late":0,"lateness_ms":{"p50":0,"p99":0,"max":0}}`
	if want := orders + posts + "}\n" + orders + "}\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// The ledger finds every kind of violation that is planted in a correct run.
func TestLedgerFindsViolations(t *testing.T) {
	early := func(s *stage) {
		s.orders.late.Add(time.UnixMilli(1), time.UnixMilli(2))
		s.posts.arrived.Add(time.UnixMilli(1), time.UnixMilli(2))
	}
	for _, c := range []struct {
		name, plant string
		more        func(*stage)
		want        string
	}{
		{"an effect before the due time", "UPDATE cancellations SET at_ms = 1002 WHERE order_id = 'order-3'", nil, "orders were broken: 1 early"},
		{"messages without effect came early", "SELECT 1", early, "orders were broken: 1 early; the guarantees for posts were broken: 1 early"},
		{"the message of a paid order never came", "DELETE FROM rabbitdelay_processed WHERE message_id = 'order-2'", nil, "orders were broken: 1 lost"},
		{"an order stayed unpaid", "UPDATE orders SET status = 'unpaid' WHERE id = 'order-2'", nil, "orders were broken: 1 lost"},
		{"an order is gone", "DELETE FROM orders WHERE id = 'order-4'", nil, "orders were broken: 1 lost"},
		{"an order is gone, its effect is not", "DELETE FROM orders WHERE id = 'order-5'", nil, "orders were broken: 1 lost, 1 contradictory"},
		{"an effect twice", "INSERT INTO cancellations VALUES ('order-3', 1004)", nil, "orders were broken: 1 effects committed twice"},
		{"a paid order with an effect", "INSERT INTO cancellations VALUES ('order-2', 2000)", nil, "orders were broken: 1 contradictory"},
		{"a paid order was cancelled", "UPDATE orders SET paid_ms = 900 WHERE id = 'order-3'", nil, "orders were broken: 1 contradictory"},
		{"a cancelled order without effect", "DELETE FROM cancellations WHERE order_id = 'order-3'", nil, "orders were broken: 1 contradictory"},
		{"an effect on an unknown order", "INSERT INTO cancellations VALUES ('x', 1)", nil, "orders were broken: 1 contradictory"},

		{"published before the last due time", "UPDATE publications SET at_ms = 1000 WHERE post_id = 'post-1'", nil, "posts were broken: 1 early"},
		{"done without publication", "DELETE FROM publications WHERE post_id = 'post-1'", nil, "posts were broken: 1 lost, 1 contradictory"},
		{"published twice", "INSERT INTO publications VALUES ('post-1', 2000)", nil, "posts were broken: 1 published twice"},
		{"published although cancelled", "INSERT INTO publications VALUES ('post-6', 1)", nil, "posts were broken: 1 although cancelled, 1 contradictory"},
		{"cancelled for the author only", "UPDATE rabbitdelay_tasks SET status = 'pending' WHERE id = 'post-6'", nil, "posts were broken: 1 contradictory"},
		{"the task is gone", "DELETE FROM rabbitdelay_tasks WHERE id = 'post-6'", nil, "posts were broken: 1 contradictory"},
		{"a post is gone", "DELETE FROM posts WHERE id = 'post-6'", nil, "posts were broken: 1 lost, 1 contradictory"},
		{
			"a post that was rolled back is there",
			"INSERT INTO posts (id, status, due_ms) VALUES ('post-10', 'rolled back', 1)", nil,
			"posts were broken: 1 contradictory",
		},
		{"and is published", "INSERT INTO publications VALUES ('post-10', 2000)", nil, "posts were broken: 1 contradictory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, out := honest(t)
			s.must(t, c.plant)
			if c.more != nil {
				c.more(s)
			}
			err := s.showLedger(t.Context())
			if err == nil {
				t.Fatalf("got no error for the planted violation:\n%s", out)
			}
			if got, want := strings.ReplaceAll(err.Error(), "\n", "; "), "the guarantees for "+c.want; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if !strings.Contains(out.String(), " 1  WRONG\n") {
				t.Errorf("got the ledger\n%s\nwant a line with \" 1  WRONG\"", out)
			}
		})
	}
}

// The fates of posts change them only before they are due, so that no change is too late, and twenty posts have every
// kind of change.
func TestFates(t *testing.T) {
	for number, fate := range fates {
		due, last := 1.0, 0.0
		for _, c := range fate {
			if c.at <= last || c.at > due || c.to != 0 && c.to <= c.at {
				t.Errorf("fate %d: got a change at %v after the one at %v, with the due time %v, to %v, want ascending times before the due time", number, c.at, last, due, c.to)
			}
			last = c.at
			if c.to != 0 {
				due = c.to
			}
		}
	}
}
