package schedule

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// counting counts the statements that a database executes.
type counting struct {
	sqldb.DB

	statements atomic.Int64
}

func (c *counting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.statements.Add(1)
	return c.DB.ExecContext(ctx, query, args...)
}

func (c *counting) QueryContext(ctx context.Context, query string, args ...any) (sqldb.Rows, error) {
	c.statements.Add(1)
	return c.DB.QueryContext(ctx, query, args...)
}

func (c *counting) QueryRowContext(ctx context.Context, query string, args ...any) sqldb.Row {
	c.statements.Add(1)
	return c.DB.QueryRowContext(ctx, query, args...)
}

func (c *counting) Begin(ctx context.Context, opts *sql.TxOptions) (sqldb.Tx, error) {
	c.statements.Add(1)
	return c.DB.Begin(ctx, opts)
}

// paced runs a store with its defaults in a bubble, and another store on the same database that only writes.
func paced(t *testing.T, cfg Config, test func(t *testing.T, s, other *Store, r *recorder, asked *counting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		cfg.VirtualTime = true
		cfg.Hooks.Error = func(what string, err error) { t.Errorf("%s failed with %v, want no error", what, err) }
		s, db := openStore(t, r, cfg)
		defer func() { check(t, db.Close()) }()
		asked := &counting{DB: s.db.DB}
		s.db.DB = asked
		other, err := New(sqldb.Foreign(asked), nil, Config{})
		check(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		test(t, s, other, r, asked)
		stop()
		check(t, <-done)
	})
}

// A running store executes few statements in a bubble. Otherwise a test of a virtual day would take a minute.
func TestVirtualDayIsCheap(t *testing.T) {
	paced(t, Config{}, func(t *testing.T, s, _ *Store, r *recorder, asked *counting) {
		for i, at := range []time.Duration{30 * time.Hour, 31 * time.Hour, 50 * time.Hour} {
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: string(rune('a' + i)), Queue: "q", DeliverAt: time.Now().Add(at)}))
		}
		<-time.After(29 * time.Hour)
		if n := asked.statements.Load(); n > 3000 {
			t.Errorf("the store executed %d statements in 29 hours, want at most 3000", n)
		}
		relays, err := relaysOf(t, s)
		if err != nil || len(relays) != 1 || time.Since(relays[0].Seen) > 20*time.Second {
			t.Errorf("this store's relays are %+v, error %v, want one that was seen within the last 20s and no error", relays, err)
		}
		if got := r.receipts(); len(got) != 3 {
			t.Errorf("%d messages were sent, want 3", len(got))
		}
	})
}

// Even after a long idle period, a task that a store in the bubble writes is found as quickly as it would be outside of
// a bubble.
func TestNothingIsLateInABubble(t *testing.T) {
	const idle = 11*time.Hour + 11*time.Second
	within := func(t *testing.T, r *recorder, id string, since time.Time, most time.Duration) {
		t.Helper()
		synctest.Wait()
		for _, x := range r.receipts() {
			if x.m.ID == id {
				if took := x.at.Sub(since); took < 0 || took > most {
					t.Errorf("%s was sent after %v, want at most %v", id, took, most)
				}
				return
			}
		}
		t.Errorf("task %s was not sent, want it within %v", id, most)
	}
	for name, c := range map[string]func(t *testing.T, s, other *Store, r *recorder){
		"a task by another store": func(t *testing.T, _, other *Store, r *recorder) {
			now := time.Now()
			check(t, other.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: now}))
			<-time.After(time.Minute)
			within(t, r, "a", now, 2*time.Second)
		},
		"a task that enters the horizon": func(t *testing.T, _, other *Store, r *recorder) {
			now := time.Now()
			check(t, other.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: now.Add(25*time.Hour + time.Minute)}))
			<-time.After(2 * time.Hour)
			within(t, r, "a", now.Add(time.Hour+time.Minute), 2*time.Second)
		},
		"a task that was moved": func(t *testing.T, s, other *Store, r *recorder) {
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(100 * time.Hour)}))
			<-time.After(time.Hour)
			now := time.Now()
			check(t, other.RunNow(t.Context(), NoTx, "a"))
			<-time.After(time.Minute)
			within(t, r, "a", now, 2*time.Second)
		},
		"a message that is lost": func(t *testing.T, s, _ *Store, r *recorder) {
			now := time.Now()
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: now.Add(3 * time.Hour)}))
			<-time.After(4 * time.Hour)
			got := r.receipts()
			if len(got) < 2 || got[1].at.Sub(now.Add(3*time.Hour+s.cfg.Grace)).Abs() > s.cfg.SweepInterval {
				for _, x := range got {
					t.Errorf("the task was sent after %v, want its second send after 3h and the grace period of %v", x.at.Sub(now), s.cfg.Grace)
				}
			}
		},
		"a recurring task": func(t *testing.T, _, other *Store, r *recorder) {
			check(t, other.Recurring().Add(t.Context(), NoTx, Recurring{Name: "r", Every: time.Minute, Task: Task{Queue: "q"}}))
			<-time.After(10 * time.Minute)
			if n := len(r.receipts()); n < 10 {
				t.Errorf("%d messages were sent, want at least 10", n)
			}
		},
		"a row that another program writes": func(t *testing.T, s, _ *Store, r *recorder) {
			insert := func(id string) time.Time {
				_, err := s.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', 1)", id)
				check(t, err)
				return time.Now()
			}
			now := insert("a")
			<-time.After(time.Hour)
			within(t, r, "a", now, 10*time.Minute)
			now = insert("b")
			s.Wake()
			<-time.After(time.Hour)
			within(t, r, "b", now, time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			paced(t, Config{}, func(t *testing.T, s, other *Store, r *recorder, _ *counting) {
				<-time.After(idle)
				c(t, s, other, r)
			})
		})
	}
}

// depths is a recorder that reports a depth of 1 for every queue.
type depths struct{ *recorder }

func (depths) QueueInfo(context.Context, string) (amqpx.QueueInfo, error) {
	return amqpx.QueueInfo{Ready: 1}, nil
}

// A task that no consumer handles is checked at growing intervals.
func TestOverdueTasksAreCheapInABubble(t *testing.T) {
	paced(t, Config{}, func(t *testing.T, s, _ *Store, _ *recorder, n *counting) {
		s.sweeper.Inspector = depths{}
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now()}))
		<-time.After(time.Hour)
		before := n.statements.Load()
		<-time.After(48 * time.Hour)
		if asked := n.statements.Load() - before; asked > 15_000 {
			t.Errorf("the store executed %d statements in two days, want at most 15000", asked)
		}
	})
}
