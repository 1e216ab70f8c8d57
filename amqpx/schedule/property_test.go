package schedule

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver named sqlite
	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// world contains a store, a broker and a consumer, which share a goroutine and a clock, and a model of what may happen.
type world struct {
	t       *rapid.T
	db      *sql.DB
	store   *Store
	handler *handler
	now     time.Time

	waiting []amqpx.Message // messages in the broker
	refused []amqpx.Message // messages that SendBatch refused as invalid
	sent    map[sending]bool
	faults  func() sendFault

	model    map[string]*expected
	outcome  error // the outcome of the handler's next run
	effects  int   // effects of the current delivery
	skipped  SkipReason
	stopped  map[SkipReason]int
	happened int
}

// expected is the state of a task according to the model.
type expected struct {
	version  int64
	status   Status
	due      time.Time
	finished time.Time
}

// sending identifies the message for a version of a task.
type sending struct {
	id      string
	version int64
}

type sendFault int

const (
	noFault     sendFault = iota
	notSent               // the broker did not accept it
	unknownKept           // the broker accepted it, and the confirm was lost
	neverSent             // it can never be sent
)

const maxAttempts = 3

var errHandler = errors.New("the handler fails")

func newWorld(t *rapid.T) *world {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	w := &world{t: t, db: db, now: time.UnixMilli(1_700_000_000_000), model: map[string]*expected{}, stopped: map[SkipReason]int{}, sent: map[sending]bool{}}
	w.faults = func() sendFault { return noFault }
	if err := Migrate(context.Background(), db); err != nil {
		t.Fatal(err)
	}
	w.store, err = New(db, w, Config{
		Horizon: time.Hour, Batch: 3, Grace: 2 * time.Minute, MaxSends: 20, Lease: time.Minute,
		Retention: Retention{Keep: time.Hour, KeepFailed: 2 * time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.store.goBy(func() time.Time { return w.now })
	w.handler = newHandler(sqldb.Of(db), w.effect, []HandlerOption{
		OnSkip(func(_ context.Context, _ *amqpx.Delivery, r SkipReason) { w.skipped = r }),
		OnFailure(func(_ context.Context, _ *amqpx.Delivery, _ error, _ bool, err error) {
			if err != nil {
				t.Fatalf("recording a failure returned %v, want nil", err)
			}
		}),
	})
	w.handler.db, w.handler.clock = w.store.db, w.store.poller.Clock
	return w
}

// MaxDelay and SendBatch make the world the store's sender.
func (w *world) MaxDelay() time.Duration { return 24 * time.Hour }

func (w *world) SendBatch(_ context.Context, msgs []amqpx.Message) error {
	be := &amqpx.BatchError{Total: len(msgs), Failed: map[int]*amqpx.SendError{}}
	for i, m := range msgs {
		if m.DeliverAt.Sub(w.now) > time.Hour {
			w.t.Fatalf("task %s was sent %v before it is due, want at most 1h, the horizon", m.ID, m.DeliverAt.Sub(w.now))
		}
		f := w.faults()
		cause := amqpx.ErrClosed
		switch f {
		case noFault, unknownKept:
			w.waiting = append(w.waiting, m)
			w.sent[sending{m.ID, m.Version}] = true
		case neverSent:
			cause = amqpx.ErrMessage
			w.refused = append(w.refused, m)
		}
		if f != noFault {
			be.Failed[i] = &amqpx.SendError{ID: m.ID, Unknown: f == unknownKept, Cause: cause}
		}
	}
	if len(be.Failed) > 0 {
		return be
	}
	return nil
}

// effect is the handler's function. It fails the test unless the model allows an effect at this time.
func (w *world) effect(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
	e := w.model[d.ID]
	switch {
	case e == nil:
		w.t.Fatalf("task %s took effect, want no effect, because the model has no such task", d.ID)
	case e.status != StatusPending || e.version != d.Version:
		w.t.Fatalf("task %s took effect in version %d, want no effect, because the model has it %s in version %d", d.ID, d.Version, e.status, e.version)
	case w.now.Before(e.due):
		w.t.Fatalf("task %s took effect %v early, want it not to be early", d.ID, e.due.Sub(w.now))
	}
	if w.outcome == nil {
		w.effects++
	}
	return w.outcome
}

// deliver passes a due message to the consumer. With crashBeforeAck, the message stays in the broker.
func (w *world) deliver(i int, outcome error, crashBeforeAck bool) {
	m := w.waiting[i]
	d := &amqpx.Delivery{ID: m.ID, Queue: m.Queue, Version: m.Version, Attempt: max(m.Attempt, 1), MaxAttempts: maxAttempts, DueAt: m.DeliverAt}
	w.outcome, w.effects, w.skipped = outcome, 0, ""
	err := w.handler.handle(context.Background(), d)
	if w.skipped != "" {
		w.stopped[w.skipped]++
	}
	e := w.model[m.ID]
	ran := w.skipped == ""
	switch {
	case err == nil && ran:
		if w.effects != 1 {
			w.t.Fatalf("task %s was acknowledged after %d effects, want 1", m.ID, w.effects)
		}
		w.happened++
		e.status, e.finished = StatusDone, w.now
	case err == nil && e != nil && e.status == StatusPending && e.version == m.Version && !m.DeliverAt.Before(e.due):
		w.t.Fatalf("the current message of the pending task %s was skipped as %s, want it handled", m.ID, w.skipped)
	case err != nil && !errors.Is(err, errHandler):
		w.t.Fatalf("handler of task %s: got %v, want no error or errHandler", m.ID, err)
	case err != nil && (d.Attempt >= maxAttempts || amqpx.IsRejected(err)):
		e.status, e.finished = StatusFailed, w.now
	}
	if crashBeforeAck {
		return
	}
	w.waiting = append(w.waiting[:i:i], w.waiting[i+1:]...)
	if err != nil && d.Attempt < maxAttempts && !amqpx.IsRejected(err) {
		m.Attempt = d.Attempt + 1
		m.DeliverAt = w.now.Add(10 * time.Second)
		w.waiting = append(w.waiting, m)
	}
}

func (w *world) due() (list []int) {
	for i, m := range w.waiting {
		if !m.DeliverAt.After(w.now) {
			list = append(list, i)
		}
	}
	return list
}

// inTx runs a change in a transaction that commits or rolls back, and records it in the model if it took effect.
func (w *world) inTx(commit bool, change func(Executor) error, allowed error, apply func()) {
	tx, err := w.db.BeginTx(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	err = change(tx)
	if !errors.Is(err, allowed) {
		w.t.Fatalf("the change returned %v, want %v", err, allowed)
	}
	end := tx.Rollback
	if commit {
		end = tx.Commit
	}
	if e := end(); e != nil {
		w.t.Fatalf("ending the transaction with commit = %t: got %v, want no error", commit, e)
	}
	if commit && err == nil {
		apply()
	}
}

// change applies do to a random task. The call must succeed if the task has the wanted status, and apply then changes
// the model.
func (w *world) change(t *rapid.T, want Status, do func(ex Executor, id string) error, apply func(e *expected)) {
	id := anyID(t)
	e := w.model[id]
	var allowed error
	switch {
	case e == nil:
		allowed = ErrNotFound
	case e.status != want:
		allowed = ErrStatus
	}
	w.inTx(rapid.IntRange(0, 4).Draw(t, "commit") > 0, func(ex Executor) error { return do(ex, id) }, allowed, func() { apply(e) })
}

func anyID(t *rapid.T) string { return fmt.Sprintf("task-%d", rapid.IntRange(0, 3).Draw(t, "id")) }

func (w *world) anyDue(t *rapid.T) time.Time {
	return w.now.Add(time.Duration(rapid.Int64Range(-3600_000, 3600_000).Draw(t, "due")) * time.Millisecond)
}

func (w *world) check(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

// statusesMatch compares every row with the model.
func (w *world) statusesMatch() {
	seen := 0
	for task, err := range w.store.List(context.Background(), NoTx, Filter{}) {
		w.check(err)
		e := w.model[task.ID]
		if e == nil || e.status != task.Status || e.version != task.Version || !e.due.Equal(task.DeliverAt) {
			w.t.Fatalf("List: got the row %+v, want %+v, as in the model", task, e)
		}
		seen++
	}
	if seen != len(w.model) {
		w.t.Fatalf("List: got %d rows, want %d, as in the model", seen, len(w.model))
	}
}

// Tasks are randomly scheduled, cancelled, rescheduled, run early, revived and purged, mixed with crashes of relay and
// consumer at every point, lost confirms, duplicate deliveries and a broker that loses all messages. Only the effects
// that the model allows occur, and in the end no task is pending.
func TestEffectsAreThoseOfTheModel(t *testing.T) {
	// By default, the test runs a few long histories, so that messages of old versions arrive after newer versions
	// exist.
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	const fewer = 5 // with -short, rapid divides the steps by this number; then too few are left for old messages to meet new versions
	for name, value := range map[string]int{"rapid.steps": 200, "rapid.checks": 15} {
		if given[name] {
			continue
		}
		if testing.Short() {
			value *= fewer
		}
		if err := flag.Set(name, strconv.Itoa(value)); err != nil {
			t.Fatalf("setting the flag %s returned %v, want nil", name, err)
		}
	}
	total := map[SkipReason]int{}
	happened := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		defer func() { _ = w.db.Close() }()
		ctx := context.Background()
		faulty := func() sendFault {
			return sendFault(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 2, 2, 3}).Draw(t, "fault"))
		}
		steps := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				if steps++; steps%10 == 0 { // reading everything costs more than the step
					w.statusesMatch()
				}
			},
			"schedule": func(t *rapid.T) {
				id, due := anyID(t), w.anyDue(t)
				replace := rapid.Bool().Draw(t, "replace")
				e := w.model[id]
				var allowed error
				if !replace && e != nil {
					allowed = ErrExists
				}
				w.inTx(rapid.IntRange(0, 4).Draw(t, "commit") > 0, func(ex Executor) error {
					return w.store.Schedule(ctx, ex, Task{ID: id, Queue: "q", DeliverAt: due, Replace: replace})
				}, allowed, func() {
					version := int64(1)
					if e != nil {
						version = e.version + 1
					}
					w.model[id] = &expected{version: version, status: StatusPending, due: due}
				})
			},
			"cancel": func(t *rapid.T) {
				w.change(t, StatusPending, func(ex Executor, id string) error { return w.store.Cancel(ctx, ex, id) },
					func(e *expected) { e.status, e.finished = StatusCancelled, w.now })
			},
			"reschedule": func(t *rapid.T) {
				due := w.anyDue(t)
				w.change(t, StatusPending, func(ex Executor, id string) error { return w.store.Reschedule(ctx, ex, id, due) },
					func(e *expected) { e.version++; e.due = due })
			},
			"run now": func(t *rapid.T) {
				w.change(t, StatusPending, func(ex Executor, id string) error { return w.store.RunNow(ctx, ex, id) },
					func(e *expected) { e.version++; e.due = w.now })
			},
			"revive": func(t *rapid.T) {
				due := w.anyDue(t)
				w.change(t, StatusFailed, func(ex Executor, id string) error { return w.store.Revive(ctx, ex, id, due) },
					func(e *expected) { e.version++; e.status = StatusPending; e.due = due })
			},
			"everything runs": func(t *rapid.T) {
				w.faults = faulty
				w.step()
				for _, i := range w.due() {
					w.deliver(i, rapid.SampledFrom([]error{nil, errHandler}).Draw(t, "outcome"), true)
				}
			},
			"relay": func(t *rapid.T) {
				w.faults = faulty
				w.step()
			},
			"sweep": func(*rapid.T) {
				w.faults = faulty
				w.sweep()
			},
			"relay crashes": func(t *rapid.T) {
				w.faults = faulty
				list := w.claim(rows.Purpose(rapid.IntRange(0, 1).Draw(t, "sweep")))
				if rapid.Bool().Draw(t, "after publishing") {
					w.store.relay.Publish(ctx, list, func(*rows.Task, error) {})
					w.refused = nil
				}
			},
			"relay is slow to mark": func(t *rapid.T) {
				// The consumer, and another relay after the claim has expired, act before this relay marks its tasks.
				w.faults = faulty
				list, err := w.store.relay.Take(ctx)
				w.check(err)
				ok, failures := published(w.store, list)
				if due := w.anyDue(t); rapid.Bool().Draw(t, "move") {
					w.change(t, StatusPending, func(ex Executor, id string) error { return w.store.Reschedule(ctx, ex, id, due) },
						func(e *expected) { e.version++; e.due = due })
				} else {
					w.change(t, StatusPending, func(ex Executor, id string) error { return w.store.Cancel(ctx, ex, id) },
						func(e *expected) { e.status, e.finished = StatusCancelled, w.now })
				}
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
				for _, i := range w.due() {
					w.deliver(i, nil, true)
				}
				w.check(w.store.relay.MarkSent(ctx, ok))
				w.check(w.store.relay.SettleFailures(ctx, failures))
				w.failRefused()
			},
			"deliver": func(t *rapid.T) {
				due := w.due()
				if len(due) == 0 {
					t.Skip("nothing is due")
				}
				outcome := rapid.SampledFrom([]error{nil, nil, errHandler, amqpx.Reject(errHandler)}).Draw(t, "outcome")
				w.deliver(rapid.SampledFrom(due).Draw(t, "message"), outcome, rapid.IntRange(0, 3).Draw(t, "crash") == 0)
			},
			"broker is wiped": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
					t.Skip("not often")
				}
				w.waiting = nil
			},
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 3600_000).Draw(t, "ms")) * time.Millisecond)
			},
			"purge": func(*rapid.T) {
				_, err := w.store.Purge(ctx, Retention{})
				w.check(err)
				for id, e := range w.model {
					keep := time.Hour
					if e.status == StatusFailed {
						keep = 2 * time.Hour
					}
					if e.status != StatusPending && e.finished.Before(w.now.Add(-keep)) {
						delete(w.model, id)
					}
				}
			},
		})
		w.settle()
		for r, n := range w.stopped {
			total[r] += n
		}
		happened += w.happened
	})
	t.Logf("%d effects; messages stopped by the fence: %v", happened, total)
	for _, r := range []SkipReason{SkipDuplicate, SkipStale, SkipCancelled} {
		if total[r] == 0 {
			t.Errorf("0 messages were skipped as %s, want at least 1, because the test otherwise proves nothing about them", r)
		}
	}
}

func (w *world) step() (found int) {
	found, _, err := w.store.relay.Step(context.Background())
	w.check(err)
	w.failRefused()
	return found
}

func (w *world) sweep() {
	w.check(w.store.sweeper.Sweep(context.Background()))
	w.failRefused()
}

// claim claims all tasks that it finds, whether or not there is evidence that their messages are lost.
func (w *world) claim(p rows.Purpose) []*rows.Task {
	until := w.now.Add(time.Hour).UnixMilli()
	if p == rows.ToResend {
		until = w.now.UnixMilli()
	}
	lanes, _, err := w.store.relay.Look(context.Background(), p, until)
	w.check(err)
	var requests []rows.ClaimRequest
	for _, l := range lanes {
		requests = append(requests, rows.ClaimRequest{Lane: l.Lane, Until: until, Most: w.store.cfg.Batch})
	}
	list, err := w.store.relay.Claim(context.Background(), p, requests)
	w.check(err)
	return list
}

// failRefused marks the tasks of refused messages as failed in the model.
func (w *world) failRefused() {
	for _, m := range w.refused {
		if e := w.model[m.ID]; e.status == StatusPending && e.version == m.Version {
			e.status, e.finished = StatusFailed, w.now
		}
	}
	w.refused = nil
}

// allSent fails the test unless the current versions of all tasks that are due soon have been sent.
func (w *world) allSent() {
	for id, e := range w.model {
		if e.status == StatusPending && !e.due.After(w.now.Add(time.Hour)) && !w.sent[sending{id, e.version}] {
			w.t.Fatalf("version %d of task %s, due at %v, has not been sent at %v, want it sent by the relay", e.version, id, e.due, w.now)
		}
	}
}

// settle runs relay, sweeper and consumer without faults until no task is pending.
func (w *world) settle() {
	w.faults = func() sendFault { return noFault }
	for round := range 300 {
		pending := 0
		for _, e := range w.model {
			if e.status == StatusPending {
				pending++
			}
		}
		if pending == 0 {
			w.statusesMatch()
			return
		}
		for w.step() > 0 {
		}
		if round > 0 { // every claim and pause has ended
			w.allSent()
		}
		w.sweep()
		for len(w.due()) > 0 {
			w.deliver(w.due()[0], nil, false)
		}
		w.now = w.now.Add(5 * time.Minute)
	}
	w.statusesMatch()
	w.t.Fatalf("after a day without faults, the tasks are %v, want none pending", w.model)
}
