//go:build !race

// Each simulation runs in one goroutine on SQLite, which the race detector makes ten times slower. In `make test`, the
// race detector is therefore off for the simulations.

package schedule

import (
	"cmp"
	"container/heap"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// takes is how long a consumer works on a message, whether or not it has an effect.
const takes = 2 * time.Second

// simulation is a running store with a queue and its consumers, in virtual time.
type simulation struct {
	t     *testing.T
	tick  time.Duration
	store *Store
	db    *sql.DB
	start time.Time

	to       Task          // destination of the tasks
	load     float64       // the rate of new tasks, as a fraction of the consumers' capacity
	ahead    time.Duration // the time from scheduling a task until it is due
	stopped  bool          // consumers are down
	hung     bool          // consumers receive messages and do not handle them
	acks     bool          // consumers acknowledge messages without passing them to the handler
	prefetch int           // messages that consumers hold in addition to those that they handle

	handler        amqpx.Handler
	inflow         float64 // the fractions of tasks left over from earlier ticks
	tasks, handled int

	mu     sync.Mutex
	seq    int
	wait   delayed
	ready  []amqpx.Message  // ready messages in the queue
	held   []amqpx.Message  // unacknowledged messages
	sent   map[string]int   // messages that the broker has accepted, by task
	again  int              // messages that were not the first of their task
	lose   map[string]bool  // the broker confirms the next messages of these tasks and loses them
	failed map[string]error // failed tasks, from Hooks.SendFailed
}

// delayed is a heap of the messages that are still delayed, the next one first.
type delayed []*inTransit

type inTransit struct {
	m   amqpx.Message
	seq int
}

func (h delayed) Len() int { return len(h) }
func (h delayed) Less(i, j int) bool {
	return cmp.Or(h[i].m.DeliverAt.Compare(h[j].m.DeliverAt), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h delayed) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *delayed) Push(x any)   { *h = append(*h, x.(*inTransit)) }
func (h *delayed) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (s *simulation) MaxDelay() time.Duration { return 48 * time.Hour }

func (s *simulation) SendBatch(_ context.Context, msgs []amqpx.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range msgs {
		if s.sent[m.ID]++; s.sent[m.ID] > 1 {
			s.again++
		}
		if s.lose[m.ID] {
			delete(s.lose, m.ID)
			continue
		}
		s.seq++
		if m.DeliverAt.Before(time.Now()) {
			m.DeliverAt = time.Now() // it arrives now, behind earlier arrivals
		}
		heap.Push(&s.wait, &inTransit{m, s.seq})
	}
	return nil
}

// QueueInfo returns what a passive declaration of the queue would return.
func (s *simulation) QueueInfo(_ context.Context, queue string) (amqpx.QueueInfo, error) {
	if queue != "q" {
		s.t.Errorf(`QueueInfo was called for queue %q, want "q"`, queue)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return amqpx.QueueInfo{Ready: len(s.ready), Consumers: 1}, nil
}

// simulate runs script alongside a store that relays and sweeps. A tick is the precision with which messages arrive and
// are handled.
func simulate(t *testing.T, tick time.Duration, script func(t *testing.T, s *simulation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			t: t, tick: tick, start: time.Now(), ahead: 5 * time.Minute, to: Task{Queue: "q"}, sent: map[string]int{},
			lose: map[string]bool{}, failed: map[string]error{},
		}
		s.store, s.db = openStore(t, s, Config{
			VirtualTime: true, Workers: 1, PollInterval: 4 * tick, SweepInterval: max(tick, 15*time.Second),
			clockInterval: 24 * time.Hour, Retention: Retention{Every: 24 * time.Hour},
			Hooks: Hooks{SendFailed: s.onFailed, Error: func(what string, err error) { t.Errorf("%s failed with %v, want no error", what, err) }},
		})
		s.handler = Handler(s.db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { s.handled++; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.store.Run(ctx) }()
		defer func() {
			cancel()
			check(t, <-done)
			check(t, s.db.Close())
		}()
		script(t, s)
	})
}

// long skips a simulation that takes seconds, if the tests run with -short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped with -short, because this simulation takes seconds")
	}
	t.Parallel()
}

func (s *simulation) onFailed(t TaskRow, err error, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed {
		s.failed[t.ID] = err
	}
}

// run advances the time by d.
func (s *simulation) run(d time.Duration) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.inflow += s.load * s.tick.Seconds() / takes.Seconds()
		if n := int(s.inflow); n > 0 {
			s.add(n)
			s.inflow -= float64(n)
		}
		<-time.After(s.tick)
		synctest.Wait()
		s.arrive()
		s.consume()
	}
}

// until advances the time until reached returns true, and returns how long that took.
func (s *simulation) until(limit time.Duration, what string, reached func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for !reached() {
		if time.Since(began) > limit {
			s.t.Fatalf("%s; want the tasks %s within %v", s.state(), what, limit)
		}
		s.run(time.Minute)
	}
	return time.Since(began)
}

// add schedules n tasks and returns the id of the last one.
func (s *simulation) add(n int) (id string) {
	s.t.Helper()
	list := make([]Task, n)
	for i := range list {
		s.tasks++
		list[i] = s.to
		list[i].ID, list[i].DeliverAt = fmt.Sprintf("%06d", s.tasks), time.Now().Add(s.ahead)
		id = list[i].ID
	}
	check(s.t, s.store.ScheduleBatch(s.t.Context(), NoTx, list))
	return id
}

// addLost schedules a task whose first message is lost.
func (s *simulation) addLost() (id string) {
	s.t.Helper()
	s.mu.Lock()
	s.lose[fmt.Sprintf("%06d", s.tasks+1)] = true
	s.mu.Unlock()
	return s.add(1)
}

// arrive moves due messages into the queue.
func (s *simulation) arrive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.wait) > 0 && !s.wait[0].m.DeliverAt.After(time.Now()) {
		s.ready = append(s.ready, heap.Pop(&s.wait).(*inTransit).m)
	}
}

// consume handles as many messages as the consumers can handle in a tick.
func (s *simulation) consume() {
	s.t.Helper()
	if s.stopped {
		return
	}
	n := int(s.tick / takes)
	s.mu.Lock()
	if take := min(n+s.prefetch-len(s.held), len(s.ready)); take > 0 {
		s.held = append(s.held, s.ready[:take]...)
		s.ready = s.ready[take:]
	}
	n = min(n, len(s.held))
	if s.hung {
		n = 0
	}
	list := s.held[:n:n]
	s.held = s.held[n:]
	s.mu.Unlock()
	if !s.acks {
		s.handle(list)
	}
}

// handle passes messages to the handler, which ignores messages of old versions and duplicates.
func (s *simulation) handle(list []amqpx.Message) {
	s.t.Helper()
	for _, m := range list {
		check(s.t, s.handler(s.t.Context(), &amqpx.Delivery{
			ID: m.ID, Queue: "q", Exchange: m.Exchange, RoutingKey: m.RoutingKey, Version: m.Version, Attempt: 1, MaxAttempts: 3, DueAt: m.DeliverAt,
		}))
	}
}

// restart stops and starts the consumers, whose messages return to the queue.
func (s *simulation) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.held, s.ready...)
	s.held = nil
}

// wipe removes all messages from the broker.
func (s *simulation) wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait, s.ready, s.held = nil, nil, nil
}

// count returns the number of tasks that satisfy the condition.
func (s *simulation) count(where string, args ...any) (n int) {
	s.t.Helper()
	check(s.t, s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE "+where, args...).Scan(&n))
	return n
}

// late returns the number of pending tasks that were due more than a minute ago.
func (s *simulation) late() int {
	s.t.Helper()
	return s.count("status = 'pending' AND due_at < ?", time.Now().Add(-time.Minute).UnixMilli())
}

// inQueue returns the number of messages that are ready or unacknowledged.
func (s *simulation) inQueue() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready) + len(s.held)
}

// resent returns the number of messages that were not the first of their task.
func (s *simulation) resent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

func (s *simulation) state() string {
	return fmt.Sprintf("after %v: %d tasks, %d sent again, %d handled, %d late, %d messages in the queue",
		time.Since(s.start).Round(time.Second), s.tasks, s.resent(), s.handled, s.late(), s.inQueue())
}

// drained reports whether the consumers have caught up.
func (s *simulation) drained() bool { return s.late() == 0 && s.inQueue() < 10 }

func (s *simulation) noneFailed() {
	s.t.Helper()
	if n := s.count("status = 'failed'"); n != 0 {
		s.t.Errorf("%d tasks failed, want 0: %s", n, s.state())
	}
}

// atMost fails the test if more than the given share of the tasks was sent again.
func (s *simulation) atMost(share float64) {
	s.t.Helper()
	if limit := int(float64(s.tasks) * share); s.resent() > limit {
		s.t.Errorf("%d messages were sent again for %d tasks, want at most %d: %s", s.resent(), s.tasks, limit, s.state())
	}
}

// When consumers continue after a pause, they reduce the backlog with their spare capacity. Hardly any task in the
// backlog is sent again, because a second message in the queue would delay the messages behind it.
func TestPauseDrains(t *testing.T) {
	for _, pause := range []time.Duration{5 * time.Minute, time.Hour} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
				s.outage(pause)
				s.atMost(0.01)
			})
		})
	}
}

// outage stops the consumers for the given time, at a load of 0.6, and fails the test unless the backlog drains and no
// task fails.
func (s *simulation) outage(pause time.Duration) {
	s.t.Helper()
	s.load = 0.6
	s.run(20 * time.Minute)
	s.stopped = true
	s.run(pause)
	s.stopped = false
	took := s.until(2*pause, "drained", s.drained) // at this load, draining takes 0.6/0.4 times the pause
	s.run(20 * time.Minute)
	s.t.Logf("drained after %v: %s", took, s.state())
	s.noneFailed()
}

// If the depth of the queue behind an exchange is unknown, a few tasks are sent again as a test, and no task fails.
func TestPauseBehindAnExchange(t *testing.T) {
	long(t)
	simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
		s.to = Task{Exchange: "e", RoutingKey: "k"}
		s.outage(time.Hour)
		s.atMost(0.03)
	})
}

// No task for an exchange fails, even if the consumers pause for a weekend.
func TestWeekendBehindAnExchange(t *testing.T) {
	long(t)
	simulate(t, 2*time.Minute, func(t *testing.T, s *simulation) {
		s.to = Task{Exchange: "e", RoutingKey: "k"}
		s.stopped = true
		s.add(20)
		s.run(60 * time.Hour)
		s.stopped = false
		s.until(time.Hour, "drained", s.drained)
		t.Log(s.state())
		s.noneFailed()
		s.atMost(10)
	})
}

// If a consumer holds every message and does nothing for an hour, its queue is empty, as if the messages had been lost.
// Still, only a few tasks are sent again.
func TestHungConsumer(t *testing.T) {
	long(t)
	simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
		s.load, s.prefetch = 0.6, 1_000_000
		s.run(20 * time.Minute)
		s.hung = true
		s.run(time.Hour)
		s.restart()
		s.hung = false
		took := s.until(3*time.Hour, "drained", s.drained)
		s.run(20 * time.Minute)
		t.Logf("drained after %v: %s", took, s.state())
		s.noneFailed()
		s.atMost(0.12)
	})
}

// A slow consumer with a large prefetch empties its queue long before it has handled the messages. The messages are
// not considered lost.
func TestLargePrefetch(t *testing.T) {
	long(t)
	simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
		s.prefetch = 1_000_000
		s.load = 0.2
		s.run(20 * time.Minute)
		s.add(1500) // 50 minutes of work, in addition to the load
		s.run(2 * s.ahead)
		took := s.until(2*time.Hour, "drained", s.drained)
		s.run(20 * time.Minute)
		t.Logf("drained after %v: %s", took, s.state())
		s.noneFailed()
		s.atMost(0.01)
	})
}

// If the broker loses all messages, all of them are sent again, whether or not other tasks show that the consumers are
// working.
func TestWipedBroker(t *testing.T) {
	for name, load := range map[string]float64{"busy": 0.6, "nothing else": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
				s.load, s.ahead = 0.6, 20*time.Minute
				s.run(40 * time.Minute)
				s.stopped = true
				s.run(20 * time.Minute)
				s.wipe()
				lost := s.count("status = 'pending' AND sends > 0")
				s.stopped, s.load = false, load
				// Half of the lost messages are not due for 20 minutes.
				took := s.until(2*time.Hour, "drained", func() bool {
					return s.count("status = 'pending' AND sends > 0 AND due_at < ?", time.Now().Add(-5*time.Minute).UnixMilli()) == 0 && time.Since(s.start) > 90*time.Minute
				})
				t.Logf("%d messages were lost, and their tasks are done after %v: %s", lost, took, s.state())
				s.noneFailed()
				if n := s.resent(); n < lost || n > lost+s.tasks/50 {
					t.Errorf("%d messages were sent again, want %d to %d, because %d were lost", n, lost, lost+s.tasks/50, lost)
				}
			})
		})
	}
}

// A lost message is sent again a few minutes after it was due.
func TestLostMessage(t *testing.T) {
	for name, load := range map[string]float64{"busy": 0.6, "seldom used": 1.0 / 300, "idle": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulate(t, 20*time.Second, func(t *testing.T, s *simulation) {
				s.load = load
				s.run(30 * time.Minute)
				id := s.addLost()
				s.run(s.ahead)
				took := s.until(10*time.Minute, "done", func() bool { return s.count("id = ? AND status = 'done'", id) == 1 })
				t.Logf("done %v after it was due: %s", took, s.state())
				if s.resent() != 1 {
					t.Errorf("%d messages were sent again, want one", s.resent())
				}
			})
		})
	}
}

// A task that is never settled is sent a limited number of times, and then fails.
func TestTaskThatIsNeverSettled(t *testing.T) {
	t.Parallel()
	simulate(t, 2*time.Minute, func(t *testing.T, s *simulation) {
		s.acks = true
		s.add(30)
		s.run(30 * time.Hour)
		s.noneFailed()
		s.run(20 * time.Hour)
		if n := s.count("status = 'failed'"); n != 30 || len(s.failed) != 30 {
			t.Errorf("%d tasks failed and %d failures were reported, want 30 and 30: %s", n, len(s.failed), s.state())
		}
		for id, n := range s.sent {
			if n != s.store.cfg.MaxSends {
				t.Errorf("task %s was sent %d times, want %d", id, n, s.store.cfg.MaxSends)
			}
		}
		got, err := s.store.Get(t.Context(), NoTx, "000007")
		check(t, err)
		t.Log(got.LastError)
		for _, part := range []string{"MaxSends", "queue q", "schedule.Handler"} {
			if !strings.Contains(got.LastError, part) {
				t.Errorf("the reason is %q, want it to contain %q", got.LastError, part)
			}
		}
		if !errors.Is(s.failed["000007"], ErrMaxSends) {
			t.Errorf("the hook got %v, want ErrMaxSends", s.failed["000007"])
		}
	})
}

func TestResendsBecomeRarer(t *testing.T) {
	var r recorder
	cfg := Config{Grace: time.Minute, SweepInterval: 20 * time.Second, clockInterval: time.Hour, Retention: Retention{Keep: 1000 * time.Hour}}
	bubble(t, &r, cfg, func(t *testing.T, s *Store, _ *sql.DB) {
		check(t, s.Schedule(t.Context(), NoTx, near("a")))
		<-time.After(48 * time.Hour)
		synctest.Wait()
		if got, err := s.Get(t.Context(), NoTx, "a"); err != nil || got.Status != StatusPending {
			t.Errorf("Get: got %+v, error %v, want a pending task, because nothing shows that a consumer has handled it", got, err)
		}
	})
	got := r.receipts()
	for i := 1; i < len(got); i++ {
		pause, want := got[i].at.Sub(got[i-1].at), time.Minute<<(i-1)
		if pause < want || pause > want+30*time.Second {
			t.Errorf("resend %d was %v after the previous send, want %v to %v", i, pause, want, want+30*time.Second)
		}
	}
	if len(got) != 10 {
		t.Errorf("the task was sent %d times in two days, want 10", len(got))
	}
}
