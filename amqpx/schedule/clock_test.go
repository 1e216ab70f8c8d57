package schedule

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// goBy makes the store and its embedded database use the given clock.
func (s *Store) goBy(now func() time.Time) {
	began := now()
	*s.db = *rows.Open(s.db.DB, sqldb.SQLite, now)
	s.poller.Local = now
	s.poller.Up = func() time.Duration { return now().Sub(began) }
}

// ClockSkew reports the difference that its most precise measurement found, and ignores measurements that took longer.
func TestClockSkewIsReported(t *testing.T) {
	var seen time.Duration
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, nil, Config{Hooks: Hooks{ClockSkew: func(skew, _ time.Duration) { seen = skew }}})
		defer func() { _ = db.Close() }()
		takes := []time.Duration{time.Second, 10 * time.Millisecond, 5 * time.Second}
		s.poller.Ask = func(context.Context) (time.Time, error) {
			<-time.After(takes[0])
			takes = takes[1:]
			return time.Now().Add(time.Hour), nil
		}
		skew, uncertainty, err := s.ClockSkew(t.Context())
		if err != nil || seen != skew || (skew-time.Hour).Abs() > uncertainty || uncertainty > 10*time.Millisecond {
			t.Errorf("ClockSkew: got %v ± %v (error %v) and the reported skew %v, want 1h ± at most 10ms for both and no error", skew, uncertainty, err, seen)
		}
	})
}

// A store uses the database's clock for the times that it writes, even if no relay is running.
func TestWritesUseTheDatabasesClock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		s, db := openStore(t, nil, Config{Now: func() time.Time { return time.Now().Add(ahead) }})
		t.Cleanup(func() { _ = db.Close() })
		began := time.Now().Add(-time.Second)
		right := func(what string, at time.Time) {
			t.Helper()
			if at.Before(began) || at.After(time.Now().Add(time.Second)) {
				t.Errorf("with a clock ahead by %v, the task or queue was %s at %v, want within a second of %v", ahead, what, at, began)
			}
		}
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: began.Add(2 * time.Hour)}))
		check(t, s.RunNow(t.Context(), NoTx, "a"))
		task, err := s.Get(t.Context(), NoTx, "a")
		check(t, err)
		right("created", task.CreatedAt)
		right("made due", task.DeliverAt)
		check(t, s.Pause(t.Context(), NoTx, topology.Destination{Queue: "q"}, "me"))
		held, err := s.Destinations(t.Context(), NoTx)
		check(t, err)
		right("paused", held[0].PausedAt)
		start := began.Add(10 * time.Minute).Truncate(time.Second)
		check(t, s.Recurring().Add(t.Context(), NoTx, Recurring{Name: "r", Every: time.Minute, Start: start, Task: toQ()}))
		if _, err := s.Get(t.Context(), NoTx, "r@"+start.UTC().Format(time.RFC3339)); err != nil {
			t.Errorf("with a clock ahead by %v, Get of the first occurrence: got %v, want no error", ahead, err)
		}
	}
}

// If a consumer's clock is ahead, its retries are not late because of that. Only a first attempt is checked against the
// database's clock.
func TestRetryByAClockThatIsAhead(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	h := newHandler(s.db.DB, nil, nil)
	for attempt, want := range []bool{true, false} {
		d := &amqpx.Delivery{Attempt: attempt + 1, DueAt: time.Now().Add(2 * time.Hour), Headers: amqp.Table{amqpx.HeaderDue: int64(1)}}
		if err := h.tooEarly(t.Context(), d); (err != nil) != want {
			t.Errorf("attempt %d, due by a clock that is 2h ahead: got %v, want an error: %t", attempt+1, err, want)
		}
	}
}

// A relay whose clock differs from the database's uses the database's clock, so that no task is early or late because
// of the difference.
func TestRelayUsesTheDatabasesClock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{}
			s, db := openStore(t, r, Config{Horizon: time.Minute, PollInterval: time.Second, VirtualTime: true})
			defer func() { _ = db.Close() }()
			s.poller.Local = func() time.Time { return time.Now().Add(ahead) }
			failing := 2
			s.poller.Ask = func(context.Context) (time.Time, error) {
				if failing--; failing >= 0 {
					return time.Time{}, errors.New("not yet")
				}
				return time.Now(), nil
			}
			due := time.Now().Add(3 * time.Minute)
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: due}))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			<-time.After(4 * time.Minute)
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: "b", Queue: "q", DeliverAt: due.Add(time.Hour)}))
			check(t, s.RunNow(t.Context(), NoTx, "b"))
			<-time.After(3 * time.Second)
			cancel()
			check(t, <-done)
			got := r.receipts()
			if len(got) != 2 {
				t.Fatalf("a clock %v ahead: %d messages were sent, want 2", ahead, len(got))
			}
			if early := due.Sub(got[0].at); early > time.Minute || early < time.Minute-2*time.Second {
				t.Errorf("a clock %v ahead: the task was sent %v before it was due, want 58s to 1m, the horizon", ahead, early)
			}
			for _, x := range got {
				if x.m.ClockOffset != -ahead {
					t.Errorf("a clock %v ahead: the message's ClockOffset is %v, want %v", ahead, x.m.ClockOffset, -ahead)
				}
			}
			if now := time.Now(); now.Sub(got[1].m.DeliverAt).Abs() > 5*time.Second {
				t.Errorf("a clock %v ahead: the message is due at %v, want %v", ahead, got[1].m.DeliverAt, now)
			}
			var until, resend int64
			check(t, db.QueryRowContext(t.Context(), "SELECT claimed_until, resend_at FROM rabbitdelay_tasks WHERE id = 'a'").Scan(&until, &resend))
			if at := time.UnixMilli(resend); at.Sub(due) > time.Hour/2 || until != 0 {
				t.Errorf("a clock %v ahead: resend_at is %v and claimed_until is %d, want at most 30m after the due time %v, and 0", ahead, at, until, due)
			}
		})
	}
}

// If the database's clock cannot be read, Run reports that repeatedly, and still returns when its context ends.
func TestRunEndsWithoutAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported int
		s, db := openStore(t, &recorder{}, Config{VirtualTime: true, Hooks: Hooks{Error: func(what string, _ error) {
			if what == "clock" {
				reported++
			}
		}}})
		defer func(db *sql.DB) { _ = db.Close() }(db)
		s.poller.Ask = func(context.Context) (time.Time, error) { return time.Time{}, errors.New("down") }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		check(t, s.Run(ctx))
		if reported < 10 {
			t.Errorf("%d errors were reported in a minute, want at least 10", reported)
		}
	})
}

// Run refuses a database clock that differs by more than a day. If the clock jumps while Run is running, Health reports
// that, and no task is sent because of the jump.
func TestRelayRefusesAClockYearsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		s, db := openStore(t, r, Config{VirtualTime: true})
		defer func() { check(t, db.Close()) }()
		var ahead atomic.Int64
		s.poller.Ask = func(context.Context) (time.Time, error) { return time.Now().Add(time.Duration(ahead.Load())), nil }
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(100 * time.Hour)}))
		for _, x := range []time.Duration{26 * 365 * 24 * time.Hour, -26 * 365 * 24 * time.Hour, 25 * time.Hour} {
			ahead.Store(int64(x))
			if err := s.Run(t.Context()); !errors.Is(err, ErrClock) {
				t.Errorf("Run with a database clock %v ahead: got %v, want ErrClock", x, err)
			}
		}
		ahead.Store(0)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Hour)
		ahead.Store(int64(100 * time.Hour))
		<-time.After(time.Hour)
		if err := s.Health(); !errors.Is(err, ErrClock) || len(r.receipts()) > 0 {
			t.Errorf("after the clock jumped: Health returned %v and %+v was sent, want ErrClock and nothing", err, r.receipts())
		}
		stop()
		check(t, <-done)
	})
}

// A relay whose clock is wrong makes no task late, because the delay and the times in a task's message refer to the
// database's clock.
func TestRelayWithAWrongClockMakesNoTaskLate(t *testing.T) {
	right := time.Now
	for _, lead := range []time.Duration{0, 5 * time.Second} {
		for _, ahead := range []time.Duration{1500 * time.Millisecond, 20 * time.Second, time.Hour, -20 * time.Second, -time.Hour} {
			if late := lateBy(t, lead, func() time.Time { return time.Now().Add(ahead) }, right, right); late > time.Second {
				t.Errorf("a relay %v ahead, with a lead of %v: the task was handled %v late, want at most 1s", ahead, lead, late)
			}
		}
	}
}

// A database whose clock is wrong makes no task late, because due times refer to that clock.
func TestDatabaseWithAWrongClockMakesNoTaskLate(t *testing.T) {
	right := time.Now
	for _, lead := range []time.Duration{0, 5 * time.Second} {
		for _, ahead := range []time.Duration{1500 * time.Millisecond, 20 * time.Second, time.Hour, -20 * time.Second, -time.Hour} {
			if late := lateBy(t, lead, right, func() time.Time { return time.Now().Add(ahead) }, right); late > time.Second {
				t.Errorf("a database %v ahead, with a lead of %v: the task was handled %v late, want at most 1s", ahead, lead, late)
			}
		}
	}
}

// lateBy returns how late a task is handled, by the database's clock, and fails the test if it is early.
func lateBy(t *testing.T, lead time.Duration, relays, databases, consumers func() time.Time) (late time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		open := func(now func() time.Time) *amqpx.Client {
			c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Lead: lead, Now: now})
			check(t, err)
			return c
		}
		sender, receiver := open(relays), open(consumers)
		defer func() { check(t, errors.Join(sender.Close(t.Context()), receiver.Close(t.Context()))) }()
		s, db := openStore(t, sender, Config{Now: relays, DatabaseNow: databases, VirtualTime: true})
		defer func() { check(t, db.Close()) }()
		ctx, stop := context.WithCancel(t.Context())
		var handled time.Time
		h := Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error {
			handled = databases()
			return nil
		}, WithNow(consumers), WithDatabaseNow(databases))
		done := make(chan error, 2)
		go func() { done <- s.Run(ctx) }()
		go func() { done <- receiver.Consume(ctx, "q", h) }()
		after(time.Second)
		due := databases().Add(2 * time.Minute)
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: due}))
		after(5 * time.Hour)
		stop()
		check(t, errors.Join(<-done, <-done))
		if late = handled.Sub(due); handled.IsZero() || late < -clockSlack {
			t.Errorf("the task was handled at %v, %v after it was due, want it handled and at most %v early", handled, late, clockSlack)
		}
	})
	return late
}
