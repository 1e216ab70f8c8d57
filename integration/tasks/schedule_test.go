package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// outbox is a sender that keeps the messages that it is given. refuse, when set, returns the error
// of one message.
type outbox struct {
	mu     sync.Mutex
	sent   []amqpx.Message
	refuse func(m amqpx.Message) error
	whole  func(msgs []amqpx.Message) error // an error of the whole batch
}

func (o *outbox) MaxDelay() time.Duration { return 48 * time.Hour }

func (o *outbox) SendBatch(_ context.Context, msgs []amqpx.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.whole != nil {
		if err := o.whole(msgs); err != nil {
			return err
		}
	}
	be := &amqpx.BatchError{Total: len(msgs), Failed: map[int]*amqpx.SendError{}}
	for i, m := range msgs {
		if o.refuse != nil {
			if err := o.refuse(m); err != nil {
				be.Failed[i] = &amqpx.SendError{ID: m.ID, Cause: err}
				continue
			}
		}
		o.sent = append(o.sent, m)
	}
	if len(be.Failed) > 0 {
		return be
	}
	return nil
}

func (o *outbox) messages() []amqpx.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.sent)
}

func (o *outbox) count(id string) (n int) {
	for _, m := range o.messages() {
		if m.ID == id {
			n++
		}
	}
	return n
}

// asDelivery returns the delivery that a consumer would receive for a message in the outbox.
func asDelivery(m amqpx.Message) *amqpx.Delivery {
	return &amqpx.Delivery{ID: m.ID, Queue: m.Queue, Body: m.Body, Version: m.Version, Attempt: max(m.Attempt, 1), MaxAttempts: 3, DueAt: m.DeliverAt}
}

func newStore(t *testing.T, db businessDB, sender schedule.Sender, cfg schedule.Config) *schedule.Store {
	t.Helper()
	if err := db.migrateTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := db.newStore(sender, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// runStore runs the store until stop is called or the test ends.
func runStore(t *testing.T, s *schedule.Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func orderTask(id string, at time.Time) schedule.Task {
	return schedule.Task{ID: id, Queue: "orders.expire", DeliverAt: at, Body: []byte(id)}
}

func taskOf(t *testing.T, s *schedule.Store, id string) schedule.TaskRow {
	t.Helper()
	got, err := s.Get(t.Context(), schedule.NoTx, id)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestScheduleInTransaction(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		var out outbox
		s := newStore(t, db, &out, schedule.Config{PollInterval: 10 * time.Millisecond})
		due := time.Now().Add(time.Hour).Truncate(time.Second).Add(1500 * time.Microsecond)
		full := schedule.Task{
			ID: "a", Exchange: "events", RoutingKey: "post.due", DeliverAt: due, Body: []byte{0, 255, '?', '\''},
			ContentType: "application/octet-stream", Type: "post", CorrelationID: "req-7", Priority: 3, Headers: map[string]string{"k": "v", "é": "ü"},
		}
		tx, _, rollback := db.begin(t)
		suite.MustSucceed(t, s.Schedule(t.Context(), tx, orderTask("gone", due)))
		rollback()
		tx, commit, _ := db.begin(t)
		suite.MustSucceed(t, s.Schedule(t.Context(), tx, full))
		// Scheduling an id that exists leaves the transaction usable.
		if err := s.Schedule(t.Context(), tx, full); !errors.Is(err, schedule.ErrExists) {
			t.Errorf("got error %v, want ErrExists", err)
		}
		suite.MustSucceed(t, s.Schedule(t.Context(), tx, orderTask("b", due)))
		commit()

		if _, err := s.Get(t.Context(), schedule.NoTx, "gone"); !errors.Is(err, schedule.ErrNotFound) {
			t.Errorf("got error %v, want ErrNotFound", err)
		}
		got := taskOf(t, s, "a")
		for _, c := range []struct {
			field     string
			got, want any
		}{
			{"Exchange", got.Exchange, "events"},
			{"RoutingKey", got.RoutingKey, "post.due"},
			{"Body", string(got.Body), string(full.Body)},
			{"ContentType", got.ContentType, full.ContentType},
			{"Type", got.Type, full.Type},
			{"CorrelationID", got.CorrelationID, full.CorrelationID},
			{"Priority", got.Priority, full.Priority},
			{"header é", got.Headers["é"], "ü"},
			{"header k", got.Headers["k"], "v"},
			{"Status", got.Status, schedule.StatusPending},
			{"Version", got.Version, int64(1)},
		} {
			if c.got != c.want {
				t.Errorf("field %s: got %#v, want %#v", c.field, c.got, c.want)
			}
		}
		if got.CreatedAt.IsZero() {
			t.Error("got a zero CreatedAt, want the creation time")
		}
		if want := due.Add(500 * time.Microsecond); !got.DeliverAt.Equal(want) {
			t.Errorf("got the due time %v, want it rounded up to %v", got.DeliverAt, want)
		}
		runStore(t, s)
		suite.Eventually(t, "both tasks are sent", func() bool { return len(out.messages()) == 2 })
		if out.count("gone") != 0 {
			t.Errorf("the task of a rolled-back transaction was sent %d times, want 0", out.count("gone"))
		}
		for _, m := range out.messages() {
			if m.ID == "a" && (m.Exchange != "events" || m.RoutingKey != "post.due" || m.Headers["k"] != "v" || m.Version != 1 || !m.DeliverAt.Equal(got.DeliverAt)) {
				t.Errorf("sent %+v, want task a to exchange events with its routing key, header, version and due time", m)
			}
		}
	})
}

func TestScheduleTwiceAndReplace(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		due := time.Now().Add(time.Hour)
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask("a", due)))
		var exists *schedule.ExistsError
		if err := s.Schedule(t.Context(), schedule.NoTx, orderTask("a", due)); !errors.As(err, &exists) || !slices.Equal(exists.IDs, []string{"a"}) {
			t.Errorf("scheduling a twice: got error %v, want a schedule.ExistsError for a", err)
		}
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "a"))
		again := orderTask("a", due.Add(time.Hour))
		again.Body = []byte("new")
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, replacing(again)))
		got := taskOf(t, s, "a")
		if got.Version != 2 || got.Status != schedule.StatusPending || string(got.Body) != "new" || !got.FinishedAt.IsZero() {
			t.Errorf(`after Replace: got %+v, want Version = 2, Status = schedule.StatusPending, Body = "new" and FinishedAt zero`, got)
		}
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, replacing(orderTask("fresh", due))))
		if v := taskOf(t, s, "fresh").Version; v != 1 {
			t.Errorf("a new task with Replace has version %d, want 1", v)
		}

		many := make([]schedule.Task, 1200)
		for i := range many {
			many[i] = orderTask(fmt.Sprintf("m%04d", i), due)
		}
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, many[1100]))
		if err := s.ScheduleBatch(t.Context(), schedule.NoTx, many); !errors.As(err, &exists) || !slices.Equal(exists.IDs, []string{"m1100"}) {
			t.Errorf("scheduling a batch that contains an existing task: got error %v, want a schedule.ExistsError for m1100", err)
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); n != 3 {
			t.Errorf("%d tasks after a batch that failed, want 3", n)
		}
		for i := range many {
			many[i].Replace = true
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, many))
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, nil))
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); n != 1202 {
			t.Errorf("%d tasks, want 1202", n)
		}
		if err := s.ScheduleBatch(t.Context(), schedule.NoTx, []schedule.Task{orderTask("x", due), orderTask("x", due)}); !errors.Is(err, schedule.ErrInvalidTask) {
			t.Errorf("scheduling a batch with a duplicate id: got error %v, want schedule.ErrInvalidTask", err)
		}
		// If many callers schedule the same id concurrently, one succeeds.
		var made atomic.Int32
		for _, err := range together(6, func(int) error { return s.Schedule(t.Context(), schedule.NoTx, orderTask("race", due)) }) {
			if err == nil {
				made.Add(1)
			} else if !errors.Is(err, schedule.ErrExists) {
				t.Errorf("scheduling a task concurrently: got %v, want nil or schedule.ErrExists", err)
			}
		}
		if made.Load() != 1 {
			t.Errorf("%d of the concurrent calls scheduled the task, want 1", made.Load())
		}
		n, err := s.CancelBatch(t.Context(), schedule.NoTx, []string{"m0001", "m0002", "a", "nobody", "m0001"})
		if err != nil || n != 3 {
			t.Errorf("cancelled %d tasks (error %v), want 3", n, err)
		}
	})
}

func TestScheduleRefusesBadTasks(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	s := newStore(t, db, nil, schedule.Config{MaxBody: 100})
	at := time.Now()
	for field, bad := range map[string]schedule.Task{
		"id: is empty":           {Queue: "q", DeliverAt: at},
		"id: 256":                {ID: strings.Repeat("x", 256), Queue: "q", DeliverAt: at},
		"id: ends in a space":    {ID: "x ", Queue: "q", DeliverAt: at},
		"id: expected UTF-8":     {ID: "\xff", Queue: "q", DeliverAt: at},
		"queue: no":              {ID: "x", DeliverAt: at},
		"queue: both":            {ID: "x", Queue: "q", Exchange: "e", DeliverAt: at},
		"queue: 300":             {ID: "x", Queue: strings.Repeat("q", 300), DeliverAt: at},
		"due time: not":          {ID: "x", Queue: "q"},
		"body: 101":              {ID: "x", Queue: "q", DeliverAt: at, Body: make([]byte, 101)},
		"headers:":               {ID: "x", Queue: "q", DeliverAt: at, Headers: map[string]string{"": "v"}},
		"due time: 12000":        {ID: "x", Queue: "q", DeliverAt: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"content type: \"a\\x00": {ID: "x", Queue: "q", DeliverAt: at, ContentType: "a\x00"},
	} {
		err := s.Schedule(t.Context(), schedule.NoTx, bad)
		if !errors.Is(err, schedule.ErrInvalidTask) || !strings.Contains(err.Error(), field) {
			t.Errorf("got error %v, want a schedule.ErrInvalidTask containing %q", err, field)
		}
	}
	if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); n != 0 {
		t.Errorf("%d tasks in the table, want 0", n)
	}
	ten := orderTask("ten years", at.AddDate(10, 0, 0))
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, ten))
}

func TestScheduleChanges(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, []schedule.Task{orderTask("a", due), orderTask("b", due), orderTask("c", due)}))
		suite.MustSucceed(t, s.Reschedule(t.Context(), schedule.NoTx, "a", due.Add(time.Minute)))
		if got := taskOf(t, s, "a"); got.Version != 2 || !got.DeliverAt.Equal(due.Add(time.Minute)) {
			t.Errorf("after Reschedule: got %+v, want Version = 2 and DeliverAt = %v", got, due.Add(time.Minute))
		}
		suite.MustSucceed(t, s.RunNow(t.Context(), schedule.NoTx, "a"))
		if got := taskOf(t, s, "a"); got.Version != 3 || got.DeliverAt.After(time.Now()) {
			t.Errorf("after RunNow: got %+v, want version 3, due now", got)
		}
		// A change that is rolled back changes nothing.
		tx, _, rollback := db.begin(t)
		suite.MustSucceed(t, s.Cancel(t.Context(), tx, "b"))
		rollback()
		if got := taskOf(t, s, "b"); got.Status != schedule.StatusPending {
			t.Errorf("after a rolled-back Cancel: got %+v, want Status = schedule.StatusPending", got)
		}
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "b"))
		var late *schedule.StatusError
		for action, err := range map[string]error{
			"cancel":     s.Cancel(t.Context(), schedule.NoTx, "b"),
			"reschedule": s.Reschedule(t.Context(), schedule.NoTx, "b", due),
			"run":        s.RunNow(t.Context(), schedule.NoTx, "b"),
			"revive":     s.Revive(t.Context(), schedule.NoTx, "b", due),
		} {
			if !errors.As(err, &late) || late.Status != schedule.StatusCancelled || late.Action != action || !errors.Is(err, schedule.ErrStatus) {
				t.Errorf("%s of a cancelled task: got error %v, want a schedule.ErrStatus with the status cancelled and the action %s", action, err, action)
			}
		}
		if err := s.Cancel(t.Context(), schedule.NoTx, "nobody"); !errors.Is(err, schedule.ErrNotFound) {
			t.Errorf("got error %v, want ErrNotFound", err)
		}
		if err := s.Reschedule(t.Context(), schedule.NoTx, "c", time.Time{}); !errors.Is(err, schedule.ErrInvalidTask) {
			t.Errorf("got error %v, want ErrInvalidTask", err)
		}
	})
}

func TestScheduleHandlerFence(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		past := time.Now().Add(-time.Second).Truncate(time.Millisecond)
		db.mustExec(t, "CREATE TABLE effects (id VARCHAR(64) NOT NULL)")
		boom := errors.New("boom")
		var fail func() error
		var reasons []schedule.SkipReason
		handle := db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			if _, err := tx.ExecContext(ctx, db.bind("INSERT INTO effects VALUES (?)"), d.ID); err != nil {
				return err
			}
			if fail != nil {
				return fail()
			}
			return nil
		}, schedule.OnSkip(func(_ context.Context, _ *amqpx.Delivery, r schedule.SkipReason) { reasons = append(reasons, r) }))
		deliver := func(id string, version int64, attempt int) error {
			return handle(t.Context(), &amqpx.Delivery{ID: id, Queue: "q", Version: version, Attempt: attempt, MaxAttempts: 3, DueAt: past})
		}
		effects := func(id string) int64 { return db.queryInt(t, "SELECT COUNT(*) FROM effects WHERE id = ?", id) }
		skipped := func(id string, version int64, want schedule.SkipReason) {
			t.Helper()
			before := effects(id)
			reasons = nil
			if err := deliver(id, version, 1); err != nil || !slices.Equal(reasons, []schedule.SkipReason{want}) || effects(id) != before {
				t.Errorf("task %s, version %d: got error %v, skip reasons %v and %d new effects, want nil, [%s] and 0", id, version, err, reasons, effects(id)-before, want)
			}
		}
		for _, id := range []string{"once", "moved", "cancelled", "fails", "rejected", "panics"} {
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask(id, past)))
		}
		suite.MustSucceed(t, deliver("once", 1, 1))
		skipped("once", 1, schedule.SkipDuplicate)
		if got := taskOf(t, s, "once"); got.Status != schedule.StatusDone || got.FinishedAt.IsZero() || effects("once") != 1 {
			t.Errorf(`after the effect: got %+v, want Status = schedule.StatusDone, FinishedAt not zero and effects("once") = 1`, got)
		}
		suite.MustSucceed(t, s.Reschedule(t.Context(), schedule.NoTx, "moved", past))
		skipped("moved", 1, schedule.SkipStale)
		suite.MustSucceed(t, deliver("moved", 2, 1))
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "cancelled"))
		skipped("cancelled", 1, schedule.SkipCancelled)
		skipped("nobody", 1, schedule.SkipMissing)
		// A task that uses an id again after a purge must not be run by the message of the first
		// task, which has the same version.
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask("reused", past.Add(time.Hour))))
		skipped("reused", 1, schedule.SkipStale)

		fail = func() error { return boom }
		for attempt := 1; attempt <= 3; attempt++ {
			if err := deliver("fails", 1, attempt); !errors.Is(err, boom) {
				t.Fatalf("got error %v, want %v", err, boom)
			}
			got := taskOf(t, s, "fails")
			want := schedule.StatusPending
			if attempt == 3 {
				want = schedule.StatusFailed
			}
			if got.Status != want || got.Attempts != attempt || got.LastError != "boom" {
				t.Errorf(`after attempt %d: got %+v, want Status = %v, Attempts = %v and LastError = "boom"`, attempt, got, want, attempt)
			}
		}
		if effects("fails") != 0 {
			t.Errorf("failed attempts left %d effects, want 0", effects("fails"))
		}
		skipped("fails", 1, schedule.SkipFailed)
		fail = func() error { return amqpx.Reject(boom) }
		if err := deliver("rejected", 1, 1); !errors.Is(err, boom) || taskOf(t, s, "rejected").Status != schedule.StatusFailed {
			t.Errorf("rejected task: got error %v and %+v, want boom and Status = schedule.StatusFailed", err, taskOf(t, s, "rejected"))
		}
		fail = func() error { panic(boom) }
		if got := panicOf(func() { _ = deliver("panics", 1, 1) }); !errors.Is(got, boom) {
			t.Errorf("panicked with %v, want %v", got, boom)
		}
		if got := taskOf(t, s, "panics"); got.Attempts != 1 || !strings.Contains(got.LastError, "panicked: boom") || effects("panics") != 0 {
			t.Errorf(`after a panic: got %+v, want Attempts = 1, LastError with "panicked: boom" and effects("panics") = 0`, got)
		}
		fail = nil
		suite.MustSucceed(t, s.Revive(t.Context(), schedule.NoTx, "fails", past))
		if got := taskOf(t, s, "fails"); got.Status != schedule.StatusPending || got.Version != 2 || got.Attempts != 0 || got.LastError != "" {
			t.Errorf(`after Revive: got %+v, want Status = schedule.StatusPending, Version = 2, Attempts = 0 and LastError = ""`, got)
		}
		suite.MustSucceed(t, deliver("fails", 2, 1))
		if effects("fails") != 1 {
			t.Errorf("the revived task had %d effects, want 1", effects("fails"))
		}
		for _, d := range []*amqpx.Delivery{{Version: 1}, {ID: "x"}} {
			if err := handle(t.Context(), d); !errors.Is(err, schedule.ErrNotTask) || !amqpx.IsRejected(err) {
				t.Errorf("delivery %+v: got error %v, want a rejection with schedule.ErrNotTask", d, err)
			}
		}
	})
}

// Several deliveries of a task compete with its cancellation, and exactly one of these calls succeeds.
func TestScheduleConcurrentFence(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		past := time.Now().Add(-time.Second)
		var effects atomic.Int32
		var skips atomic.Int32
		handle := db.taskHandler(func(context.Context, schedule.Executor, *amqpx.Delivery) error { effects.Add(1); return nil },
			schedule.OnSkip(func(context.Context, *amqpx.Delivery, schedule.SkipReason) { skips.Add(1) }))
		for round := range 60 {
			id := fmt.Sprint(round)
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask(id, past)))
			effects.Store(0)
			skips.Store(0)
			cancelled := false
			for i, err := range together(4, func(i int) error {
				if i == 0 {
					return s.Cancel(t.Context(), schedule.NoTx, id)
				}
				return handle(t.Context(), &amqpx.Delivery{ID: id, Queue: "q", Version: 1, Attempt: 1, MaxAttempts: 3})
			}) {
				switch {
				case i == 0 && err == nil:
					cancelled = true
				case i == 0 && !errors.Is(err, schedule.ErrStatus), i > 0 && err != nil:
					t.Fatalf("round %d, call %d: got error %v, want nil, or schedule.ErrStatus from Cancel (call 0)", round, i, err)
				}
			}
			want := int32(1)
			if cancelled {
				want = 0
			}
			if effects.Load() != want || skips.Load() != 3-want {
				t.Fatalf("round %d (cancelled: %t): %d effects and %d skips, want %d and %d", round, cancelled, effects.Load(), skips.Load(), want, 3-want)
			}
		}
	})
}

// Several relays share the work. They send each task within the horizon once, and leave later tasks in the table.
func TestScheduleRelaysShare(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		const n = 3000
		var out outbox
		cfg := schedule.Config{PollInterval: 50 * time.Millisecond, Batch: 100, Horizon: time.Hour, Workers: 2}
		cfg.Hooks.Error = func(what string, err error) { t.Errorf("%s failed: %v", what, err) }
		first := newStore(t, db, &out, cfg)
		tasks := make([]schedule.Task, n)
		for i := range tasks {
			tasks[i] = orderTask(fmt.Sprint(i), time.Now().Add(30*time.Minute))
		}
		suite.MustSucceed(t, first.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		suite.MustSucceed(t, first.Schedule(t.Context(), schedule.NoTx, orderTask("far", time.Now().Add(2*time.Hour))))
		stops := []func(){runStore(t, first), runStore(t, newStore(t, db, &out, cfg)), runStore(t, newStore(t, db, &out, cfg))}
		suite.Eventually(t, "all tasks are sent", func() bool { return len(out.messages()) >= n })
		for _, stop := range stops {
			stop()
		}
		seen := map[string]int{}
		for _, m := range out.messages() {
			seen[m.ID]++
		}
		if len(out.messages()) != n || len(seen) != n || seen["far"] != 0 {
			t.Errorf("%d messages for %d tasks (%d for the far task), want %d, one per task, and 0 for the far task", len(out.messages()), len(seen), seen["far"], n)
		}
		if marked := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends = 1 AND resend_at = due_at + 120000 AND claimed_until = 0"); marked != n {
			t.Errorf("%d tasks are marked as sent once, with resend_at two minutes after due_at, want %d", marked, n)
		}
	})
}

// The row of a task that cannot be sent contains the reason, and no other task is delayed.
func TestScheduleBadDestinations(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		t.Parallel()
		missing := &topology.DestinationError{Destination: topology.Destination{Queue: "gone"}, Reason: "does not exist"}
		out := outbox{
			refuse: func(m amqpx.Message) error {
				switch m.Queue {
				case "gone":
					return missing
				case "full":
					return amqpx.ErrNacked
				}
				return nil
			},
			whole: func(msgs []amqpx.Message) error {
				for i, m := range msgs {
					if m.Queue == "impossible" {
						return fmt.Errorf("message %d of the batch: %w", i, &topology.DelayError{Strategy: "ttl", Reason: "is not declared"})
					}
				}
				return nil
			},
		}
		s := newStore(t, db, &out, schedule.Config{PollInterval: 5 * time.Millisecond, Batch: 10, MaxSendFailures: 1})
		soon := time.Now().Add(time.Minute)
		var tasks []schedule.Task
		for i := range 100 {
			// The tasks that cannot be sent are due first, and there are more of them than fit into a batch.
			bad := orderTask(fmt.Sprintf("bad-%d", i), soon.Add(-time.Second))
			bad.Queue = []string{"gone", "full", "impossible"}[i%3]
			tasks = append(tasks, bad, orderTask(fmt.Sprintf("good-%d", i), soon))
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		// Another program wrote this row incorrectly.
		db.mustExec(t, `INSERT INTO rabbitdelay_tasks (id, queue, due_at, headers) VALUES ('bad-json', 'q', 1, '{"a": 1}')`)
		stop := runStore(t, s)
		suite.Eventually(t, "the good tasks are sent", func() bool { return len(out.messages()) >= 100 })
		// The relay tries a full queue with only a few tasks.
		suite.Eventually(t, "some tasks for the full queue are tried", func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE queue = 'full' AND last_error IS NOT NULL") > 0
		})
		suite.Eventually(t, "the bad tasks have failed", func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE queue <> 'full' AND status = 'failed' AND last_error IS NOT NULL") == 68
		})
		stop()
		for id, want := range map[string]struct {
			status schedule.Status
			text   string
		}{
			"bad-0":    {schedule.StatusFailed, "does not exist"},
			"bad-1":    {schedule.StatusPending, "refused by the broker"},
			"bad-2":    {schedule.StatusFailed, "is not declared"},
			"bad-json": {schedule.StatusFailed, "JSON object of strings"},
		} {
			got := listedTask(t, s, id)
			if got.Status != want.status || !strings.Contains(got.LastError, want.text) {
				t.Errorf("task %s is %s with LastError %q, want %s with LastError containing %q", id, got.Status, got.LastError, want.status, want.text)
			}
		}
		for _, m := range out.messages() {
			if strings.HasPrefix(m.ID, "bad") {
				t.Errorf("task %s was sent, want only the good tasks to be sent", m.ID)
			}
		}
	})
}

// listedTask reads a task with List, which also returns rows whose headers cannot be read.
func listedTask(t *testing.T, s *schedule.Store, id string) schedule.TaskRow {
	t.Helper()
	for got, err := range s.List(t.Context(), schedule.NoTx, schedule.Filter{IDPrefix: id}) {
		suite.MustSucceed(t, err)
		if got.ID == id {
			return got
		}
	}
	t.Fatalf("got no task %s, want it in the list", id)
	return schedule.TaskRow{}
}

// Messages that the broker lost are sent again until the task is done.
func TestScheduleSweeper(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		var out outbox
		s := newStore(t, db, &out, schedule.Config{PollInterval: 5 * time.Millisecond, Grace: 20 * time.Millisecond})
		past := time.Now().Add(-time.Second)
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, []schedule.Task{
			orderTask("lost", past), orderTask("waits", past.Add(time.Hour)), orderTask("done", past), orderTask("cancelled", past),
		}))
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "cancelled"))
		handle := db.taskHandler(func(context.Context, schedule.Executor, *amqpx.Delivery) error { return nil })
		suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: "done", Version: 1, Queue: "q"}))
		stop := runStore(t, s)
		suite.Eventually(t, "the lost task is sent three times", func() bool { return out.count("lost") >= 3 })
		for _, m := range out.messages() {
			if m.ID == "lost" {
				suite.MustSucceed(t, handle(t.Context(), asDelivery(m)))
			}
		}
		stop()
		for id, most := range map[string]int{"waits": 1, "done": 0, "cancelled": 0} {
			if n := out.count(id); n != most {
				t.Errorf("%s was sent %d times, want %d", id, n, most)
			}
		}
		if got := taskOf(t, s, "lost"); got.Status != schedule.StatusDone || got.Sends < 2 {
			t.Errorf("the lost task: got %+v, want Status = schedule.StatusDone and Sends >= 2", got)
		}
	})
}

func TestScheduleListAndCount(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		base := time.Now().Add(time.Hour).Truncate(time.Hour)
		var tasks []schedule.Task
		for i := range 1300 {
			x := orderTask(fmt.Sprintf("%c-%04d", 'a'+i%3, i), base.Add(time.Duration(i/10)*time.Second)) // ten at each time
			x.Queue = []string{"q1", "q2"}[i%2]
			tasks = append(tasks, x)
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		var cancel []string
		for _, x := range tasks[:100] {
			cancel = append(cancel, x.ID)
		}
		_, err := s.CancelBatch(t.Context(), schedule.NoTx, cancel)
		suite.MustSucceed(t, err)
		list := func(f schedule.Filter) (got []string) {
			t.Helper()
			var last schedule.TaskRow
			for x, err := range s.List(t.Context(), schedule.NoTx, f) {
				suite.MustSucceed(t, err)
				if x.DeliverAt.Before(last.DeliverAt) || (x.DeliverAt.Equal(last.DeliverAt) && x.ID <= last.ID) {
					t.Fatalf("task %s (due at %v) is listed after %s (due at %v), want the order of due times and ids", x.ID, x.DeliverAt, last.ID, last.DeliverAt)
				}
				last = x
				if f.WithoutBody != (len(x.Body) == 0) {
					t.Fatalf("task %s with WithoutBody = %t has the body %q, want a body only if WithoutBody is false", x.ID, f.WithoutBody, x.Body)
				}
				got = append(got, x.ID)
			}
			return got
		}
		for name, c := range map[string]struct {
			f    schedule.Filter
			want int
		}{
			"all":       {schedule.Filter{}, 1300},
			"pending":   {schedule.Filter{Status: schedule.StatusPending, WithoutBody: true}, 1200},
			"cancelled": {schedule.Filter{Status: schedule.StatusCancelled}, 100},
			"queue":     {schedule.Filter{Queue: "q1"}, 650},
			"both":      {schedule.Filter{Queue: "q2", Status: schedule.StatusPending}, 600},
			"due":       {schedule.Filter{DueFrom: base.Add(10 * time.Second), DueTo: base.Add(20 * time.Second)}, 100},
			"prefix":    {schedule.Filter{IDPrefix: "a-"}, 434},
			"limit":     {schedule.Filter{Limit: 777}, 777},
			"after":     {schedule.Filter{After: schedule.Filter{}.CursorOf(schedule.TaskRow{Task: tasks[999]})}, 300},
			"none":      {schedule.Filter{Status: schedule.StatusDone}, 0},
		} {
			got := list(c.f)
			if name == "after" {
				if len(got) < 300 || len(got) > 309 { // ten share a due time, ordered by id
					t.Errorf("%s: got %d tasks, want 300 to 309", name, len(got))
				}
			} else if len(got) != c.want {
				t.Errorf("%s: %d tasks, want %d", name, len(got), c.want)
			}
		}
		for range s.List(t.Context(), schedule.NoTx, schedule.Filter{}) {
			break // stopping early is allowed
		}
		for _, err := range s.List(t.Context(), schedule.NoTx, schedule.Filter{Status: "odd"}) {
			if err == nil {
				t.Error("List with an unknown status: got no error")
			}
		}
		counts, err := s.Count(t.Context(), schedule.NoTx, schedule.Filter{})
		suite.MustSucceed(t, err)
		want := []schedule.QueueCount{
			{Queue: "q1", Status: schedule.StatusCancelled, Count: 50}, {Queue: "q1", Status: schedule.StatusPending, Count: 600},
			{Queue: "q2", Status: schedule.StatusCancelled, Count: 50}, {Queue: "q2", Status: schedule.StatusPending, Count: 600},
		}
		if !slices.Equal(counts, want) {
			t.Errorf("counts are %v, want %v", counts, want)
		}
		bins, err := db.view(t).Histogram(t.Context(), schedule.Filter{Status: schedule.StatusPending}, base.Add(5*time.Second), 10*time.Second, 3)
		suite.MustSucceed(t, err)
		if len(bins) != 3 || bins[0].Count != 50 || bins[1].Count != 100 || bins[2].Count != 100 || !bins[1].From.Equal(base.Add(15*time.Second)) {
			t.Errorf("got the histogram %v, want the counts 50, 100 and 100, and a second bin that starts at %v",
				bins, base.Add(15*time.Second))
		}
		for most, n := range map[int64]int64{1_000_000: 1200, 700: 700} {
			b, err := s.Backlog(t.Context(), []time.Duration{2 * time.Hour}, most)
			suite.MustSucceed(t, err)
			if b.Unsent != n || len(b.Within) != 2 || b.Overdue+b.Within[0] != n || b.Within[1] != 0 {
				t.Errorf("Backlog, counted up to %d: got %+v, want %d unsent tasks, all due within the first of two horizons", most, b, n)
			}
		}
	})
}

func TestSchedulePurge(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		var tasks []schedule.Task
		for i := range 250 {
			tasks = append(tasks, orderTask(fmt.Sprint(i), time.Now()))
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		old := time.Now().Add(-10 * 24 * time.Hour).UnixMilli()
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ? WHERE id < '2'", old) // 0, 1, 10-19, 100-199
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = ? WHERE id = '30'", old)
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = ? WHERE id = '31'", time.Now().UnixMilli())
		n, err := s.Purge(t.Context(), schedule.Retention{Batch: 25})
		if err != nil || n != 112 {
			t.Errorf("purged %d tasks (error %v), want the 112 that were done more than 7 days ago", n, err)
		}
		n, err = s.Purge(t.Context(), schedule.Retention{KeepFailed: time.Hour})
		if err != nil || n != 1 {
			t.Errorf("with KeepFailed: purged %d tasks (error %v), want the 1 that failed", n, err)
		}
		if left := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); left != 137 {
			t.Errorf("%d tasks are left, want 137", left)
		}
	})
}

func TestScheduleMigrate(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s, err := db.newStore(nil, schedule.Config{})
		suite.MustSucceed(t, err)
		if err := s.Schedule(t.Context(), schedule.NoTx, orderTask("a", time.Now())); !errors.Is(err, schedule.ErrNoTable) {
			t.Errorf("got error %v, want ErrNoTable", err)
		}
		for _, err := range together(8, func(int) error { return db.migrateTasks(t.Context()) }) {
			suite.MustSucceed(t, err)
		}
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask("a", time.Now())))
		db.mustExec(t, "DROP TABLE rabbitdelay_task_tags")
		db.mustExec(t, "DROP TABLE rabbitdelay_tasks")
		db.mustExec(t, "DROP TABLE rabbitdelay_schema")
		for statement := range strings.SplitSeq(schedule.Migrations(db.dialect), ";\n") {
			if strings.TrimSpace(statement) != "" {
				db.mustExec(t, statement)
			}
		}
		suite.MustSucceed(t, db.migrateTasks(t.Context()))
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, orderTask("a", time.Now())))
		// As the contract allows, plain SQL writes a row with only an id, a destination and a due time.
		db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('plain', 'q', 1)")
		if got := taskOf(t, s, "plain"); got.Status != schedule.StatusPending || got.Version != 1 || time.Since(got.CreatedAt).Abs() > time.Minute {
			t.Errorf("a row that plain SQL inserted: got %+v, want a pending task with version 1 and the current time in CreatedAt", got)
		}
		for _, bad := range []string{
			"INSERT INTO rabbitdelay_tasks (id, due_at) VALUES ('x', 1)",
			"INSERT INTO rabbitdelay_tasks (id, queue, exchange, due_at) VALUES ('x', 'q', 'e', 1)",
			"UPDATE rabbitdelay_tasks SET status = 'odd'",
			"UPDATE rabbitdelay_tasks SET version = 0",
		} {
			if _, err := db.ExecContext(t.Context(), bad); err == nil {
				t.Errorf("%s: got no error, want the table to reject the row", bad)
			}
		}
		skew, uncertainty, err := s.ClockSkew(t.Context())
		if err != nil || skew.Abs() > uncertainty+time.Second {
			t.Errorf("ClockSkew of a database on this machine = %v ± %v (error %v), want at most the uncertainty plus 1s", skew, uncertainty, err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, schedule.ErrNoSender) {
			t.Errorf("got error %v, want ErrNoSender", err)
		}
	})
}

// replacing returns the task with Replace set.
func replacing(t schedule.Task) schedule.Task {
	t.Replace = true
	return t
}
