package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// provider simulates a service that executes a call once for each key.
type provider struct {
	*site

	calls []string // keys, in order
	work  func(ctx context.Context, d *amqpx.Delivery) error
}

func (s *site) provider() *provider {
	return &provider{site: s, work: func(context.Context, *amqpx.Delivery) error { return nil }}
}

// handler calls the provider under a lease, and records the effect with the commit.
func (p *provider) handler(opts ...HandlerOption) amqpx.Handler {
	return LeaseHandler(p.db, func(ctx context.Context, d *amqpx.Delivery, key string) (Func, error) {
		p.mu.Lock()
		p.calls = append(p.calls, key)
		p.mu.Unlock()
		if err := p.work(ctx, d); err != nil {
			return nil, err
		}
		return p.noted(nil), nil
	}, opts...)
}

func (p *provider) wantCalls(n int, id string) {
	p.Helper()
	key := regexp.MustCompile(`^` + id + `\.[0-9]{12,13}\.q$`)
	if len(p.calls) != n || slices.ContainsFunc(p.calls, func(k string) bool { return k != p.calls[0] || !key.MatchString(k) }) {
		p.Errorf("the provider got calls with the keys %q, want %d calls with one key that matches %s", p.calls, n, key)
	}
}

// Leased work that has failed is retried although its consumer is away for longer than the retry takes, for instance
// during a deployment, and although the next task with its key is pending. It gives way only when that task is due.
func TestFailedLeaseWaitsForItsConsumer(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(ctx context.Context, d *amqpx.Delivery) error {
			if d.Attempt > 1 {
				return nil
			}
			_, err := s.ScheduleUnique(ctx, NoTx, Task{ID: "next", UniqueKey: "k", Queue: "q", DeliverAt: time.Now().Add(3 * time.Hour)}, Unique{})
			return errors.Join(err, errors.New("provider is away"))
		}
		stop := s.consume("q", p.handler())
		_, err := s.ScheduleUnique(s.Context(), NoTx, Task{ID: "first", UniqueKey: "k", Queue: "q", DeliverAt: time.Now()}, Unique{})
		check(s.T, err)
		for {
			got, err := s.Get(s.Context(), NoTx, "first")
			check(s.T, err)
			if got.LastError != "" {
				break
			}
			after(10 * time.Millisecond)
		}
		stop()
		after(20 * time.Minute)
		defer s.consume("q", p.handler())()
		after(time.Minute)
		s.wantTask("first", StatusDone, 1)
		s.wantTask("next", StatusPending, 0)
	})
}

// Work that takes much longer than its lease is done once, however many times its message is delivered while it is
// running. The task of running work cannot be cancelled or rescheduled.
func TestLeaseIsRenewed(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(context.Context, *amqpx.Delivery) error { <-time.After(time.Hour); return nil }
		defer s.consume("q", p.handler())()
		at := time.Now().Add(9 * time.Second)
		s.schedule(Task{ID: "pay", Queue: "q", DeliverAt: at})
		after(time.Minute)
		s.wantTask("pay", StatusRunning, 0)
		for range 3 {
			check(s.T, s.client.Send(s.Context(), amqpx.Message{ID: "pay", Version: 1, Queue: "q", DeliverAt: at}))
		}
		s.srv.CutConnections()
		after(30 * time.Minute)
		for what, err := range map[string]error{
			"cancel": s.Cancel(s.Context(), NoTx, "pay"), "reschedule": s.Reschedule(s.Context(), NoTx, "pay", time.Now()), "run": s.RunNow(s.Context(), NoTx, "pay"),
		} {
			var se *StatusError
			if !errors.As(err, &se) || se.Status != StatusRunning {
				s.Errorf("%s of a running task: got %v, want a *StatusError with status running", what, err)
			}
		}
		after(2 * time.Hour)
		p.wantCalls(1, "pay")
		s.wantEffects("pay", "q 1h0m10s")
		s.wantTask("pay", StatusDone, 0)
		if q, ok := s.srv.Queue("q"); !ok || q.Ready+q.Unacked != 0 {
			s.Errorf("queue q: got %+v, want it without messages", q)
		}
	})
}

// A failed attempt releases the lease, and the next attempt has the same key.
func TestLeaseRetries(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(_ context.Context, d *amqpx.Delivery) error {
			switch {
			case d.Snoozes == 0:
				return amqpx.Snooze(40 * time.Minute)
			case d.Attempt == 1:
				return errors.New("the provider is down")
			case d.Attempt == 2:
				panic("oh")
			}
			return nil
		}
		var failures []string
		onFailure := OnFailure(func(_ context.Context, _ *amqpx.Delivery, err error, final bool, recordErr error) {
			failures = append(failures, fmt.Sprint(err, final, recordErr))
		})
		defer s.consume("q", p.handler(onFailure), amqpx.WithRetry(topology.Retry{
			Backoff: 30 * time.Minute, MaxBackoff: 30 * time.Minute, Jitter: topology.NoJitter,
		}))()
		s.schedule(Task{ID: "pay", Queue: "q", DeliverAt: time.Now().Add(9 * time.Second)})
		after(time.Minute)
		s.wantTask("pay", StatusPending, 0)
		after(3 * time.Hour)
		p.wantCalls(4, "pay")
		s.wantEffects("pay", "q 1h40m10s")
		s.wantTask("pay", StatusDone, 2)
		if want := []string{"the provider is down false <nil>", "handler panicked: oh false <nil>"}; !slices.Equal(failures, want) {
			s.Errorf("OnFailure got %q, want %q", failures, want)
		}
		p.work = func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("no such card")) }
		s.schedule(Task{ID: "refused", Queue: "q", DeliverAt: time.Now()})
		after(time.Minute)
		s.wantTask("refused", StatusFailed, 1)
	})
}

// If a process dies during the work, the task can be cancelled when the lease has expired. A message that is
// redelivered earlier waits for that time before it is handled. An attempt without an outcome counts, and after
// MaxAttempts of them the task fails.
func TestLeaseOfADeadProcess(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute, SweepInterval: time.Second}, func(_ *testing.T, s *site) {
		// die starts an attempt and does nothing more, like a process that dies during the work.
		die := func(id string, attempts int) {
			h := newLeaseHandler(sqldb.Of(s.db), nil, nil)
			a := newAttempt(&amqpx.Delivery{ID: id, Version: 1, Queue: "q"}, 0, defaultLease)
			check(s.T, h.enter(s.Context(), a, &amqpx.Delivery{ID: id, Version: 1, Queue: "q", Attempt: 1, MaxAttempts: 5, DueAt: time.Now()}))
			a.leaveLane()
			if a.number != attempts {
				s.Errorf("task %s: got attempt %d, want %d", id, a.number, attempts)
			}
		}
		now := time.Now()
		for _, id := range []string{"pay", "other"} {
			s.schedule(Task{ID: id, Queue: "q", DeliverAt: now})
		}
		// These tasks count as sent, but have no messages.
		for _, id := range []string{"cancelled", "poison"} {
			_, err := s.db.ExecContext(s.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, resend_at) VALUES (?, 'q', 1, 99999999999999)", id)
			check(s.T, err)
		}
		after(time.Second)
		die("pay", 1)
		die("cancelled", 1)
		s.wantTask("pay", StatusRunning, 0)
		p := s.provider()
		defer s.consume("q", p.handler())()
		after(30 * time.Second)
		p.wantCalls(1, "other")
		p.calls = nil
		after(30*time.Second - 2*time.Second)
		if err := s.Cancel(s.Context(), NoTx, "cancelled"); !errors.Is(err, ErrStatus) {
			s.Errorf("cancel under the lease: got %v, want ErrStatus", err)
		}
		after(2 * time.Second)
		check(s.T, s.Cancel(s.Context(), NoTx, "cancelled"))
		after(time.Hour)
		p.wantCalls(1, "pay")
		s.wantTask("pay", StatusDone, 1)
		s.wantTask("cancelled", StatusCancelled, 0)

		for n := range 5 {
			die("poison", n+1)
			after(2 * time.Minute)
			s.wantTask("poison", StatusPending, n)
		}
		var got error
		h := p.handler(OnFailure(func(_ context.Context, _ *amqpx.Delivery, err error, _ bool, _ error) { got = err }))
		err := h(s.Context(), &amqpx.Delivery{ID: "poison", Version: 1, Queue: "q", Attempt: 1, MaxAttempts: 5, DueAt: time.Now()})
		if !errors.Is(err, ErrPoison) || !amqpx.IsRejected(err) || !errors.Is(got, ErrPoison) {
			s.Errorf("the handler returned %v and OnFailure got %v, want ErrPoison for both, and a rejection from the handler", err, got)
		}
		s.wantTask("poison", StatusFailed, 5)
	})
}

// If a lease is lost, the context of the work is cancelled, and its result is discarded.
func TestLeaseLost(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		var causes []string
		p.work = func(ctx context.Context, d *amqpx.Delivery) error {
			if d.Attempt > 1 {
				return nil
			}
			_, err := s.db.ExecContext(ctx, "UPDATE rabbitdelay_effects SET lease_token = 'another', lease_until = 0")
			check(s.T, err)
			if d.ID == "looks" {
				<-ctx.Done()
				causes = append(causes, context.Cause(ctx).Error())
				return ctx.Err()
			}
			return nil
		}
		defer s.consume("q", p.handler(WithLease(30*time.Second)))()
		for _, id := range []string{"looks", "does not look"} {
			s.schedule(Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(9 * time.Second)})
			after(time.Minute)
			s.wantTask(id, StatusDone, 1)
		}
		s.wantEffects("looks", "q 21s")
		s.wantEffects("does not look", "q 1m11s")
		if len(causes) != 1 || !strings.Contains(causes[0], "lease lost: another attempt holds the lease of task looks") {
			s.Errorf(`the contexts of the work have the causes %q, want one with "lease lost: another attempt holds the lease of task looks"`, causes)
		}
	})
}

// A consumer that stops releases its lease, so that another consumer can start the work immediately. The interrupted
// attempt does not count.
func TestLeaseOfAConsumerThatEnds(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(ctx context.Context, _ *amqpx.Delivery) error {
			if len(p.calls) <= 6 {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		s.schedule(Task{ID: "pay", Queue: "q", DeliverAt: time.Now()})
		for range 6 {
			stop := s.consume("q", p.handler(), amqpx.WithDrainTimeout(time.Second))
			after(time.Second)
			s.wantTask("pay", StatusRunning, 0)
			stop()
			s.wantTask("pay", StatusPending, 0)
		}
		defer s.consume("q", p.handler())()
		after(5 * time.Second)
		s.wantTask("pay", StatusDone, 0)
	})
}

// Each queue that is bound to an exchange has its own lease. Another queue of the exchange can be consumed with a
// Handler, which uses no lease.
func TestLeasesOfSubscribers(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(_ context.Context, d *amqpx.Delivery) error {
			<-time.After(10 * time.Minute)
			if d.Queue == "fails" {
				return amqpx.Reject(errors.New("never"))
			}
			return nil
		}
		defer s.consumeAll([]string{"mail", "sms", "fails"}, p.handler())()
		defer s.consume("audit", Handler(s.db, s.noted(nil)))()
		s.exchange("with", "mail", "sms", "fails", "audit")
		s.exchange("leases", "mail", "sms", "fails")
		for _, exchange := range []string{"with", "leases"} {
			at := time.Now().Add(6 * time.Second)
			s.schedule(Task{ID: exchange, Exchange: exchange, DeliverAt: at})
			after(4 * time.Minute)
			if exchange == "leases" {
				s.wantTask(exchange, StatusRunning, 0)
			}
			check(s.T, s.client.Send(s.Context(), amqpx.Message{ID: exchange, Version: 1, Exchange: exchange, DeliverAt: at}))
			after(time.Hour - 4*time.Minute)
		}
		s.wantEffects("with", "mail 10m10s", "sms 10m10s", "audit 10s")
		s.wantEffects("leases", "mail 1h10m10s", "sms 1h10m10s")
		for _, id := range []string{"with", "leases"} {
			if got, err := s.Get(s.Context(), NoTx, id); err != nil || got.Status != StatusDone {
				s.Errorf("task %s: got the status %s and the error %v, want %s and no error", id, got.Status, err, StatusDone)
			}
		}
		// The second message gives the queue whose handler failed another attempt.
		if len(p.calls) != 4+4 {
			s.Errorf("the provider got %d calls: %q, want %d", len(p.calls), p.calls, 4+4)
		}
	})
}

// A message has no effect if it is stale or a duplicate, or if its task is missing, has expired or is replaced during
// the work.
func TestLeaseSkips(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		var skips []SkipReason
		h := p.handler(OnSkip(func(_ context.Context, _ *amqpx.Delivery, r SkipReason) { skips = append(skips, r) }))
		due := time.Now().Add(time.Hour)
		s.schedule(Task{ID: "t", Queue: "q", DeliverAt: due})
		for _, d := range []amqpx.Delivery{
			{ID: "t", Version: 2, DueAt: due},
			{ID: "t", Version: 1, DueAt: due.Add(-time.Second)},
			{ID: "none", Version: 1, DueAt: due},
			{ID: "t", Version: 1, DueAt: due},
			{ID: "t", Version: 1, DueAt: due},
		} {
			check(s.T, h(s.Context(), &d))
		}
		if want := []SkipReason{SkipStale, SkipStale, SkipMissing, SkipDuplicate}; !slices.Equal(skips, want) {
			s.Errorf("OnSkip got %v, want %v", skips, want)
		}
		for _, d := range []amqpx.Delivery{{ID: "t"}, {Version: 1}} {
			if err := h(s.Context(), &d); !errors.Is(err, ErrNotTask) || !amqpx.IsRejected(err) {
				s.Errorf("the handler with %+v: got %v, want ErrNotTask and amqpx.IsRejected = true", d, err)
			}
		}
		s.schedule(Task{ID: "late", Queue: "q", DeliverAt: time.Now(), ExpiresAfter: time.Second})
		after(time.Minute)
		check(s.T, h(s.Context(), &amqpx.Delivery{ID: "late", Version: 1, DueAt: due}))
		s.wantTask("late", StatusExpired, 0)
		if skips[len(skips)-1] != SkipExpired {
			s.Errorf("OnSkip got %v, want the last reason to be %v", skips, SkipExpired)
		}
		// The task is replaced while the work is running.
		p.work = func(ctx context.Context, _ *amqpx.Delivery) error {
			return s.Schedule(ctx, NoTx, Task{ID: "r", Queue: "q", DeliverAt: due.Add(time.Hour), Replace: true})
		}
		s.schedule(Task{ID: "r", Queue: "q", DeliverAt: due})
		check(s.T, h(s.Context(), &amqpx.Delivery{ID: "r", Version: 1, DueAt: due}))
		s.wantTask("r", StatusPending, 0)
		s.wantEffects("r")
		if skips[len(skips)-1] != SkipStale {
			s.Errorf("OnSkip got %v, want the last reason to be %v", skips, SkipStale)
		}
		// If the final transaction fails, none of its changes remain.
		failing := LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) {
			return func(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error {
				_, err := tx.ExecContext(ctx, "DELETE FROM rabbitdelay_tasks")
				return errors.Join(err, errors.New("not now"))
			}, nil
		})
		s.schedule(Task{ID: "c", Queue: "q", DeliverAt: due})
		if err := failing(s.Context(), &amqpx.Delivery{ID: "c", Version: 1, Attempt: 1, DueAt: due}); err == nil || !strings.Contains(err.Error(), "not now") {
			s.Errorf(`a handler whose transaction fails: got %v, want an error with "not now"`, err)
		}
		s.wantTask("c", StatusPending, 1)
	})
}

// A task keeps its key when it is retried, revived, rescheduled or run immediately. A replacement, or a new task with
// the same id, is new work and has a new key.
func TestLeaseKey(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("the provider is down")) }
		defer s.consume("q", p.handler())()
		task := Task{ID: "pay", Queue: "q", DeliverAt: time.Now().Add(time.Minute)}
		s.schedule(task)
		after(2 * time.Minute)
		check(s.T, s.Revive(s.Context(), NoTx, "pay", time.Now()))
		after(time.Minute)
		check(s.T, s.Revive(s.Context(), NoTx, "pay", time.Now().Add(time.Hour)))
		check(s.T, s.Reschedule(s.Context(), NoTx, "pay", time.Now().Add(2*time.Hour)))
		check(s.T, s.RunNow(s.Context(), NoTx, "pay"))
		after(time.Minute)
		p.wantCalls(3, "pay")
		keys := map[string]bool{p.calls[0]: true}
		p.work = func(context.Context, *amqpx.Delivery) error { return nil }
		task.DeliverAt = time.Now().Add(time.Minute)
		for range 2 {
			check(s.T, s.Schedule(s.Context(), NoTx, replacing(task)))
			after(2 * time.Minute)
			keys[p.calls[len(p.calls)-1]] = true
		}
		if _, err := s.Bulk(s.Context(), Filter{}, BulkDelete(), BulkOptions{}); err != nil {
			s.Fatal(err)
		}
		s.schedule(task) // the new task has the same due time and version
		after(2 * time.Minute)
		keys[p.calls[len(p.calls)-1]] = true
		if len(p.calls) != 6 || len(keys) != 4 {
			s.Errorf("the provider got calls with the keys %q, want 6 calls with 4 different keys", p.calls)
		}
	})
}

// Purge does not delete the lease of running work.
func TestPurgeLeavesLeases(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		p.work = func(context.Context, *amqpx.Delivery) error { <-time.After(time.Hour); return nil }
		defer s.consume("q", p.handler())()
		s.schedule(Task{ID: "pay", Queue: "q", DeliverAt: time.Now()})
		after(30 * time.Minute)
		if _, err := s.Purge(s.Context(), Retention{Keep: time.Minute}); err != nil {
			s.Fatal(err)
		}
		after(time.Hour)
		p.wantCalls(1, "pay")
		s.wantTask("pay", StatusDone, 0)
	})
}

// Failed work is retried if the next task with its unique key is due after the retry. If that task is due earlier, the
// failed task is cancelled, and its error names the other task.
func TestLeaseFailsWithAnotherTaskOfItsKey(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		p := s.provider()
		var next Task
		p.work = func(ctx context.Context, d *amqpx.Delivery) error {
			if d.Attempt > 1 || next.ID == "" {
				return nil
			}
			_, err := s.ScheduleUnique(ctx, NoTx, next, Unique{})
			next = Task{}
			return errors.Join(err, errors.New("provider is away"))
		}
		defer s.consume("q", p.handler())()
		run := func(id string, later time.Duration) {
			next = Task{ID: id + "-next", UniqueKey: id, Queue: "q", DeliverAt: time.Now().Add(later)}
			_, err := s.ScheduleUnique(s.Context(), NoTx, Task{ID: id, UniqueKey: id, Queue: "q", DeliverAt: time.Now()}, Unique{})
			check(s.T, err)
			after(30 * time.Second)
		}
		run("first", time.Hour)
		s.wantTask("first", StatusDone, 1)
		s.wantTask("first-next", StatusPending, 0)
		run("second", 500*time.Millisecond)
		s.wantTask("second", StatusCancelled, 1)
		s.wantTask("second-next", StatusDone, 0)
		got, err := s.Get(s.Context(), NoTx, "second")
		check(s.T, err)
		for _, want := range []string{"provider is away", "second-next", "unique key second"} {
			if !strings.Contains(got.LastError, want) {
				s.Errorf("the cancelled task has the error %q, want one with %q", got.LastError, want)
			}
		}
	})
}
