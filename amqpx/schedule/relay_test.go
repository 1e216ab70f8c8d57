package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// recorder is a sender that records its messages and when it received them. If before is set, each batch is first
// passed to it.
type recorder struct {
	mu     sync.Mutex
	got    []receipt
	before func(ctx context.Context, msgs []amqpx.Message) error
	max    time.Duration
}

type receipt struct {
	at time.Time
	m  amqpx.Message
}

func (r *recorder) MaxDelay() time.Duration {
	if r.max > 0 {
		return r.max
	}
	return 48 * time.Hour
}

func (r *recorder) SendBatch(ctx context.Context, msgs []amqpx.Message) error {
	if r.before != nil {
		if err := r.before(ctx, msgs); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range msgs {
		r.got = append(r.got, receipt{time.Now(), m})
	}
	return nil
}

func (r *recorder) receipts() []receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]receipt(nil), r.got...)
}

func openStore(t *testing.T, sender Sender, cfg Config) (*Store, *sql.DB) {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if err := Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s, err := New(db, sender, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, db
}

// bubble runs test with a running store in virtual time. The relay sleeps for the poll interval of an hour, unless it
// is woken.
func bubble(t *testing.T, sender Sender, cfg Config, test func(t *testing.T, s *Store, db *sql.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.PollInterval, cfg.VirtualTime = time.Hour, true
		s, db := openStore(t, sender, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			cancel()
			if err := errors.Join(<-done, db.Close()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		test(t, s, db)
	})
}

// If the database fails immediately, the relay pauses before it tries again, even if it has already found due tasks.
func TestRelayDoesNotSpinOnAFault(t *testing.T) {
	var failures atomic.Int64
	var enough atomic.Pointer[chan struct{}] // created inside the bubble
	cfg := Config{Horizon: time.Minute, Hooks: Hooks{Error: func(string, error) {
		if failures.Add(1) == 10_000 { // each part of Run tries again after 5 s
			close(*enough.Load())
		}
	}}}
	bubble(t, &recorder{}, cfg, func(t *testing.T, s *Store, db *sql.DB) {
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(2 * time.Hour)}))
		spins := make(chan struct{})
		enough.Store(&spins)
		<-time.After(time.Hour + 30*time.Minute)
		check(t, db.Close())
		select {
		case <-spins:
			t.Error("the relay failed 10,000 times within an hour, want a pause before each retry")
		case <-time.After(time.Hour):
		}
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func near(id string) Task { return Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(time.Second)} }

func TestRelayWakesForNearTasks(t *testing.T) {
	var r recorder
	bubble(t, &r, Config{}, func(t *testing.T, s *Store, db *sql.DB) {
		start := time.Now()
		check(t, s.Schedule(t.Context(), NoTx, near("direct")))
		<-time.After(5 * time.Millisecond)
		synctest.Wait()
		if got := r.receipts(); len(got) != 1 || got[0].at.Sub(start) > 5*time.Millisecond {
			t.Fatalf("the relay sent %v, want one message within 5ms", got)
		}
		// The relay also finds a task whose transaction commits after the wake-up.
		tx, err := db.BeginTx(t.Context(), nil)
		check(t, err)
		check(t, s.Schedule(t.Context(), tx, near("in a transaction")))
		check(t, tx.Commit())
		<-time.After(20 * time.Millisecond)
		synctest.Wait()
		if got := r.receipts(); len(got) != 2 {
			t.Fatalf("%d messages were sent, want 2, including the task from the transaction", len(got))
		}
		// A row that another program inserts is found at the next poll, or after Wake.
		_, err = db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('foreign', 'q', 1)")
		check(t, err)
		s.Wake()
		<-time.After(5 * time.Millisecond)
		synctest.Wait()
		if got := r.receipts(); len(got) != 3 {
			t.Fatalf("%d messages were sent, want 3, including the foreign row", len(got))
		}
		check(t, s.Reschedule(t.Context(), NoTx, "direct", time.Now().Add(time.Second)))
		<-time.After(5 * time.Millisecond)
		synctest.Wait()
		if got := r.receipts(); len(got) != 4 || got[3].m.Version != 2 {
			t.Fatalf("the relay sent %v, want 4 messages, the last for version 2 of the rescheduled task", got)
		}
	})
}

// listener wakes the relay once a minute, and loses its connection after the third time.
type listener struct{ begun int }

func (l *listener) Listen(ctx context.Context, wake func()) error {
	l.begun++
	for range 3 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			wake()
		}
	}
	return errors.New("connection lost")
}

func TestRelayListens(t *testing.T) {
	var r recorder
	var l listener
	var reported []string
	cfg := Config{Listener: &l, Grace: 24 * time.Hour, Hooks: Hooks{Error: func(what string, err error) { reported = append(reported, what) }}}
	bubble(t, &r, cfg, func(t *testing.T, s *Store, db *sql.DB) {
		for i := range 5 {
			_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', 1)", fmt.Sprint(i))
			check(t, err)
			<-time.After(70 * time.Second)
			synctest.Wait()
			if n := len(r.receipts()); n != i+1 {
				t.Fatalf("%d rows were sent, want %d", n, i+1)
			}
		}
		if err := s.Health(); err != nil {
			t.Errorf("Health after the relay listens again: got %v, want nil", err)
		}
	})
	if l.begun != 2 || len(reported) != 1 || reported[0] != "listen" {
		t.Errorf("Listen was called %d times and the failures %q were reported, want 2 times and [\"listen\"]", l.begun, reported)
	}
}

// unnotified is a listener that receives notifications only from its third call on.
type unnotified struct{ begun int }

func (l *unnotified) Listen(ctx context.Context, wake func()) error {
	if l.begun++; l.begun < 3 {
		return fmt.Errorf("listening for tasks: %w", ErrNotNotified)
	}
	wake()
	<-ctx.Done()
	return ctx.Err()
}

// If notifications do not arrive, Run reports that once, does not count it as a fault, and tries again later.
func TestRelayIsNotNotified(t *testing.T) {
	var r recorder
	var l unnotified
	var reported []string
	core, logged := observer.New(zap.WarnLevel)
	cfg := Config{
		Listener: &l, Grace: 24 * time.Hour, Logger: zap.New(core),
		Hooks: Hooks{Error: func(what string, err error) { reported = append(reported, what) }},
	}
	bubble(t, &r, cfg, func(t *testing.T, s *Store, _ *sql.DB) {
		for _, want := range []int{1, 2, 3} {
			if l.begun != want || s.Health() != nil || len(reported) != 0 {
				t.Errorf("Listen was called %d times, Health is %v, reported %v, want %d times, nil and nothing", l.begun, s.Health(), reported, want)
			}
			<-time.After(listenRetry)
			synctest.Wait()
		}
	})
	said := logged.FilterMessageSnippet("cannot receive notifications").All()
	if len(said) != 1 || said[0].ContextMap()["poll_interval"] != time.Hour || !strings.Contains(fmt.Sprint(said[0].ContextMap()["error"]), "transaction mode") {
		t.Errorf(`got the log lines %v, want one with poll_interval = 1h and an error with "transaction mode"`,
			said)
	}
}

// published publishes the listed tasks, and returns the confirmed ones and the errors of all others.
func published(s *Store, list []*rows.Task) (ok []*rows.Task, failed map[*rows.Task]error) {
	failed = map[*rows.Task]error{}
	s.relay.Publish(context.Background(), list, func(c *rows.Task, err error) {
		if err == nil {
			ok = append(ok, c)
		} else {
			failed[c] = err
		}
	})
	return ok, failed
}

// A relay that marks a task as sent must not mark a version that was written after the relay had claimed the task.
func TestMarkOfAnOlderVersion(t *testing.T) {
	var r recorder
	s, db := openStore(t, &r, Config{})
	defer func() { _ = db.Close() }()
	check(t, s.Schedule(t.Context(), NoTx, near("a")))
	list, err := s.relay.Take(t.Context())
	check(t, err)
	ok, _ := published(s, list)
	check(t, s.RunNow(t.Context(), NoTx, "a"))
	check(t, s.relay.MarkSent(t.Context(), ok))
	if found, sent, err := s.relay.Step(t.Context()); found != 1 || sent != 1 || err != nil {
		t.Fatalf("Step: found %d, sent %d, error %v, want 1, 1 and no error for the new version", found, sent, err)
	}
	if got := r.receipts(); len(got) != 2 || got[0].m.Version != 1 || got[1].m.Version != 2 {
		t.Errorf("the relay sent %v, want version 1, then version 2", got)
	}
}

// A program that deletes a task and inserts it again, as MySQL's and SQLite's REPLACE does, writes another task with
// the same id and version. A relay that is publishing the deleted task must not mark the new one as sent.
func TestMarkOfATaskInsertedAgain(t *testing.T) {
	var r recorder
	s, db := openStore(t, &r, Config{})
	defer func() { _ = db.Close() }()
	check(t, s.Schedule(t.Context(), NoTx, near("a")))
	list, err := s.relay.Take(t.Context())
	check(t, err)
	ok, _ := published(s, list)
	_, err = db.ExecContext(t.Context(), "REPLACE INTO rabbitdelay_tasks (id, queue, due_at, created_at) SELECT id, queue, due_at, created_at + 1 FROM rabbitdelay_tasks")
	check(t, err)
	check(t, s.relay.MarkSent(t.Context(), ok))
	if found, sent, err := s.relay.Step(t.Context()); found != 1 || sent != 1 || err != nil {
		t.Fatalf("Step: found %d, sent %d, error %v, want 1, 1 and no error for the new task", found, sent, err)
	}
	if got := r.receipts(); len(got) != 2 || !got[1].m.Created.After(got[0].m.Created) {
		t.Errorf("the relay sent %v, want two messages, the second with a later creation time", got)
	}
}

// A handler may fail before the relay has marked the task as sent. Its retry still gets its full delay.
func TestMarkAfterAFailedAttempt(t *testing.T) {
	var r recorder
	s, db := openStore(t, &r, Config{})
	defer func() { _ = db.Close() }()
	check(t, s.Schedule(t.Context(), NoTx, near("a")))
	list, err := s.relay.Take(t.Context())
	check(t, err)
	ok, _ := published(s, list)
	failing := Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return errors.New("not yet") })
	if err := failing(t.Context(), &amqpx.Delivery{ID: "a", Version: 1, Attempt: 1, DueAt: list[0].DeliverAt}); err == nil {
		t.Fatal("the failing handler: got no error, want one")
	}
	resendAt := func() (at int64) {
		check(t, db.QueryRowContext(t.Context(), "SELECT resend_at FROM rabbitdelay_tasks").Scan(&at))
		return at
	}
	want := resendAt()
	check(t, s.relay.MarkSent(t.Context(), ok))
	if got := resendAt(); got != want {
		t.Errorf("the task is sent again at %v, want %v, which the handler's failure set", time.UnixMilli(got), time.UnixMilli(want))
	}
}

// When Run is stopped, it completes its current batch and releases its claims.
func TestStopFinishesTheBatch(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	r := recorder{before: func(ctx context.Context, _ []amqpx.Message) error {
		close(entered)
		<-release
		return ctx.Err()
	}}
	s, db := openStore(t, &r, Config{Workers: 1})
	defer func() { _ = db.Close() }()
	check(t, s.Schedule(t.Context(), NoTx, near("a")))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-entered
	cancel()
	close(release)
	check(t, <-done)
	got, err := s.Get(t.Context(), NoTx, "a")
	if err != nil || got.Sends != 1 {
		t.Errorf("after a clean stop: got %+v (error %v), want one send", got, err)
	}
	var until int64
	check(t, db.QueryRowContext(t.Context(), "SELECT claimed_until FROM rabbitdelay_tasks").Scan(&until))
	if until != 0 {
		t.Errorf("claimed_until is %d, want 0", until)
	}
}

// If the broker is unreachable, no task fails, and all due tasks are sent within seconds of its return.
func TestBrokerDown(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	r := recorder{}
	r.before = func(ctx context.Context, _ []amqpx.Message) error {
		if down.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &r, Config{VirtualTime: true})
		for i := range 20 {
			check(t, s.Schedule(t.Context(), NoTx, near(fmt.Sprint(i))))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(3 * time.Minute)
		got, err := s.Get(t.Context(), NoTx, "7")
		if err != nil || got.Status != StatusPending || !strings.Contains(got.LastError, "deadline") {
			t.Errorf(`while the broker is down: got %+v, error %v, want Status = %v, LastError with "deadline" and no error`, got, err, StatusPending)
		}
		down.Store(false)
		<-time.After(30 * time.Second)
		synctest.Wait()
		if n := len(r.receipts()); n != 20 {
			t.Errorf("%d tasks were sent within 30s of the broker's return, want 20", n)
		}
		cancel()
		check(t, <-done)
		check(t, db.Close())
	})
}

func TestConfigBounds(t *testing.T) {
	r := &recorder{max: time.Hour}
	s, db := openStore(t, r, Config{})
	defer func() { _ = db.Close() }()
	for field, cfg := range map[string]Config{
		"Horizon":        {Horizon: 2 * time.Hour},
		"Dialect":        {Dialect: "oracle"},
		"Lease":          {Lease: time.Second},
		"Batch":          {Batch: 10_000},
		"Workers":        {Workers: -1},
		"MaxBody":        {MaxBody: 1 << 30},
		"Retention.Keep": {Retention: Retention{Keep: time.Minute}},
		"Grace":          {Grace: -1},
	} {
		if _, err := New(db, r, cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field+":") {
			t.Errorf("New with an invalid %s: got %v, want ErrConfig with %q", field, err, field+":")
		}
	}
	if s.cfg.Horizon != time.Hour {
		t.Errorf("the horizon is %v, want 1h, the sender's maximum delay", s.cfg.Horizon)
	}
}

// With MaxSends = 1, a sent task is marked as sent and not as failed.
func TestMaxSendsOfOne(t *testing.T) {
	s, db := openStore(t, &recorder{}, Config{MaxSends: 1})
	defer func() { _ = db.Close() }()
	if err := s.Schedule(t.Context(), NoTx, Task{ID: "once", Queue: "q", DeliverAt: s.poller.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, sent, err := s.relay.Step(t.Context()); sent != 1 || err != nil {
		t.Fatalf("Step: sent %d, error %v, want 1 and no error", sent, err)
	}
	s.relay.WaitPublished()
	var sends, pause int64
	if err := db.QueryRowContext(t.Context(), "SELECT sends, resend_at - due_at FROM rabbitdelay_tasks").Scan(&sends, &pause); err != nil {
		t.Fatal(err)
	}
	if sends != 1 || pause < s.cfg.Grace.Milliseconds() {
		t.Errorf("sends is %d and resend_at is %d ms after due_at, want 1 and at least %d ms", sends, pause, s.cfg.Grace.Milliseconds())
	}
}

// If a database stops answering without refusing connections, each part that uses it reports a fault. The relay
// continues when the database answers again.
func TestDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		s, db := openStore(t, &r, Config{VirtualTime: true})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Minute)
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "1", Queue: "q", DeliverAt: time.Now().Add(25 * time.Hour)}))
		check(t, s.Health())
		only, err := db.Conn(t.Context())
		check(t, err)
		<-time.After(2 * time.Minute)
		var health *HealthError
		if err := s.Health(); !errors.As(err, &health) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("while the database hangs, Health returned %v, want a *HealthError with context.DeadlineExceeded", err)
		}
		for _, part := range []string{"relay", "recurring"} {
			if !slices.ContainsFunc(health.Faults, func(f Fault) bool { return f.Part == part }) {
				t.Errorf("Health while the database hangs: got %v, want a fault of part %s", health, part)
			}
		}
		<-time.After(2 * time.Hour)
		check(t, only.Close())
		<-time.After(time.Minute)
		if got := r.receipts(); len(got) != 1 || s.Health() != nil {
			t.Errorf("after the database answered again: got %d sent tasks and Health %v, want 1 and nil", len(got), s.Health())
		}
		stop()
		check(t, errors.Join(<-done, db.Close()))
	})
}

// A database that hangs when Run starts is reported as a fault, like one that hangs later.
func TestDatabaseHangsFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &recorder{}, Config{VirtualTime: true})
		only, err := db.Conn(t.Context())
		check(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(3 * time.Minute)
		if _, faulty := errors.AsType[*HealthError](s.Health()); !faulty {
			t.Errorf("Health while the database does not answer: got %v, want a *HealthError", s.Health())
		}
		check(t, only.Close())
		<-time.After(time.Minute)
		check(t, s.Health())
		stop()
		check(t, errors.Join(<-done, db.Close()))
	})
}

// If the database refuses statements, each part tries again at the poll interval, even if a hook panics because of the
// error.
func TestDatabaseRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed atomic.Int64
		s, db := openStore(t, &recorder{}, Config{VirtualTime: true, Hooks: Hooks{Error: func(string, error) {
			failed.Add(1)
			panic("hook")
		}}})
		_, err := db.ExecContext(t.Context(), "ALTER TABLE rabbitdelay_schedules RENAME COLUMN plan_at TO gone")
		check(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Minute)
		if n := failed.Load(); n < 50 || n > 70 {
			t.Errorf("the hook was called for %d failures in a minute, want 50 to 70, about one a second", n)
		}
		stop()
		check(t, errors.Join(<-done, db.Close()))
	})
}
