package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

var mail = topology.Destination{Queue: "mail"}

// A task that becomes due while its destination is paused takes effect once, after the pause, even if its message had
// already been sent. Tasks for other destinations are on time.
func TestPauseKeepsTasksInTheTable(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		s.consumeAll([]string{"mail", "other"}, Handler(s.db, s.noted(nil)))
		s.schedule(Task{ID: "sent", Queue: "mail", DeliverAt: s.began.Add(time.Hour)})
		s.schedule(Task{ID: "later", Queue: "mail", DeliverAt: s.began.Add(5 * time.Hour)})
		s.schedule(Task{ID: "other", Queue: "other", DeliverAt: s.began.Add(time.Hour)})
		after(time.Minute)
		if got, err := s.Get(t.Context(), NoTx, "sent"); err != nil || got.Sends != 1 {
			t.Fatalf("before the pause, the task was sent %d times, error %v, want once", got.Sends, err)
		}
		check(t, s.Pause(t.Context(), NoTx, mail, "alice"))
		check(t, s.Pause(t.Context(), NoTx, mail, "bob")) // pausing twice changes nothing
		s.schedule(Task{ID: "new", Queue: "mail", DeliverAt: time.Now()})
		after(2 * time.Hour)
		s.wantEffects("other", "other 1h0m0s")
		for _, id := range []string{"sent", "new"} {
			s.wantEffects(id)
			s.wantTask(id, StatusPending, 0)
		}
		states, err := s.Destinations(t.Context(), NoTx)
		check(t, err)
		if len(states) != 1 || states[0].PausedBy != "alice" || states[0].PausedAt.Sub(s.began).Round(time.Minute) != time.Minute || states[0].Waiting != 2 {
			t.Errorf(`Destinations during the pause: got %+v, want one destination, paused by "alice" after about 1m, with Waiting = 2`,
				states)
		}
		check(t, s.Resume(t.Context(), NoTx, mail, 0))
		after(4 * time.Hour)
		s.wantEffects("sent", "mail 2h1m2s")
		s.wantEffects("new", "mail 2h1m2s")
		s.wantEffects("later", "mail 5h0m0s")
		if states, err := s.Destinations(t.Context(), NoTx); err != nil || len(states) != 0 {
			t.Errorf("after the pause: got the destinations %+v, error %v, want none and no error", states, err)
		}
	})
}

// A task that waits for a retry when its destination is paused keeps its number of attempts.
func TestPauseKeepsAttempts(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		fails := true
		s.consume("mail", Handler(s.db, s.noted(func(d *amqpx.Delivery) error {
			if fails {
				return errors.New("not now")
			}
			if d.Attempt != 2 {
				t.Errorf("after the pause: got attempt %d, want 2", d.Attempt)
			}
			return nil
		})), amqpx.WithRetry(topology.Retry{Backoff: time.Hour, Jitter: topology.NoJitter}))
		s.schedule(Task{ID: "a", Queue: "mail", DeliverAt: time.Now()})
		after(time.Minute)
		fails = false
		s.wantTask("a", StatusPending, 1)
		check(t, s.Pause(t.Context(), NoTx, mail, ""))
		after(3 * time.Hour)
		s.wantTask("a", StatusPending, 1)
		check(t, s.Resume(t.Context(), NoTx, mail, 0))
		after(time.Minute)
		s.wantTask("a", StatusDone, 1)
	})
}

// Pausing an exchange pauses all its routing keys. After the pause, the task takes effect once in each bound queue.
func TestPauseOfAnExchange(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		s.consumeAll([]string{"a", "b"}, Handler(s.db, s.noted(nil)))
		s.exchange("events", "a", "b")
		s.schedule(Task{ID: "x", Exchange: "events", RoutingKey: "k", DeliverAt: s.began.Add(time.Minute)})
		after(time.Second)
		events := topology.Destination{Exchange: "events"}
		check(t, s.Pause(t.Context(), NoTx, events, ""))
		after(time.Hour)
		s.wantEffects("x")
		check(t, s.Resume(t.Context(), NoTx, events, 0))
		after(time.Minute)
		s.wantEffects("x", "a 1h0m3s", "b 1h0m3s")
	})
}

// Tasks that became due during a pause are spread over the given time. Tasks that become due after the pause are on
// time.
func TestResumeSpreads(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		s.consume("mail", Handler(s.db, s.noted(nil)))
		check(t, s.Pause(t.Context(), NoTx, mail, ""))
		for i := range 60 {
			s.schedule(Task{ID: fmt.Sprint("old", i), Queue: "mail", DeliverAt: time.Now()})
		}
		after(time.Hour)
		s.schedule(Task{ID: "young", Queue: "mail", DeliverAt: s.began.Add(time.Hour + 2*time.Minute)})
		check(t, s.Resume(t.Context(), NoTx, mail, 10*time.Minute))
		if err := s.Resume(t.Context(), NoTx, mail, 30); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "30*time.Second") {
			t.Errorf("Resume with a spread without a unit: got %v, want ErrConfig with the unit", err)
		}
		from := time.Since(s.began)
		after(20 * time.Minute)
		s.wantEffects("young", "mail 1h2m0s")
		perMinute := map[int]int{}
		for _, e := range s.effects {
			if e.id != "young" {
				perMinute[int((e.at-from)/time.Minute)]++
			}
		}
		for m := range 10 {
			if n := perMinute[m]; n < 5 || n > 7 {
				t.Errorf("%d tasks took effect in minute %d, want 5 to 7: %v", n, m, perMinute)
			}
		}
	})
}

// A spread and a rate limit apply together: sending the tasks that became due during a pause takes the longer of the
// two times.
func TestResumeSpreadsWithinARateLimit(t *testing.T) {
	for _, c := range []struct {
		tasks        int
		perSecond    float64
		spread, took time.Duration
	}{
		{20, 2, 10 * time.Second, 10 * time.Second},
		{60, 2, 10 * time.Second, 30 * time.Second},
		{20, 2, time.Minute, time.Minute},
		{300, 7, 30 * time.Second, 300 * time.Second / 7},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			onSite(t, Config{RateLimits: []RateLimit{{Queue: "mail", PerSecond: c.perSecond}}}, func(t *testing.T, s *site) {
				s.consume("mail", Handler(s.db, s.noted(nil)))
				check(t, s.Pause(t.Context(), NoTx, mail, ""))
				for i := range c.tasks {
					s.schedule(Task{ID: fmt.Sprint("old", i), Queue: "mail", DeliverAt: time.Now()})
				}
				after(time.Hour)
				check(t, s.Resume(t.Context(), NoTx, mail, c.spread))
				from := time.Since(s.began)
				states, err := s.Destinations(t.Context(), NoTx)
				if check(t, err); len(states) != 1 || states[0].SpreadUntil.Sub(time.Now().Add(c.took)).Abs() > time.Second {
					t.Errorf("Destinations: got %+v, want one with SpreadUntil %v from now", states, c.took)
				}
				after(10 * time.Minute)
				at := s.instants("mail")
				if len(at) != c.tasks {
					t.Fatalf("%d tasks were delivered, want %d", len(at), c.tasks)
				}
				wantRateLimit(t, at, int(c.perSecond)+2)
				if took := at[len(at)-1] - from; took < c.took*9/10 || took > c.took*11/10+time.Second {
					t.Errorf("the deliveries took %v, want %v to %v", took, c.took*9/10, c.took*11/10+time.Second)
				}
			})
		})
	}
}

// During a pause, a recurring task continues to create tasks, which wait. The pause also applies to a relay that starts
// later.
func TestPauseAndRecurringTasks(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		s.consume("mail", Handler(s.db, s.noted(nil)))
		check(t, s.Pause(t.Context(), NoTx, mail, ""))
		check(t, s.Recurring().Add(t.Context(), NoTx, Recurring{Name: "every minute", Every: time.Minute, Task: Task{Queue: "mail"}}))
		defer s.second(Config{})()
		after(5*time.Minute + 10*time.Second)
		if len(s.effects) != 0 {
			t.Errorf("during the pause: got the effects %v, want none", s.effects)
		}
		check(t, s.Resume(t.Context(), NoTx, mail, 0))
		after(10 * time.Second)
		if len(s.effects) != 5 {
			t.Errorf("after the pause: got %d effects, want 5: %v", len(s.effects), s.effects)
		}
	})
}

// second runs another store on the site's database until the returned function is called.
func (s *site) second(cfg Config) (stop func()) {
	s.Helper()
	store, err := New(s.db, s.client, cfg)
	check(s.T, err)
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
}

// While relays start and stop, a flood of tasks is sent at no more than the rate limit in any second. Tasks for other
// destinations are on time.
func TestRateLimitOverRelays(t *testing.T) {
	const rate, burst, flood = 200, 20, 6000
	cfg := Config{RateLimits: []RateLimit{{Queue: "mail", PerSecond: rate, Burst: burst}}}
	onSite(t, cfg, func(t *testing.T, s *site) {
		note := s.noted(nil)
		plain := func(ctx context.Context, d *amqpx.Delivery) error { return note(ctx, nil, d) }
		s.consumeAll([]string{"mail", "other"}, plain)
		tasks := make([]Task, flood)
		for i := range tasks {
			tasks[i] = Task{ID: fmt.Sprint(i), Queue: "mail", DeliverAt: s.began}
		}
		check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
		began := time.Since(s.began)
		stopSecond := s.second(Config{}) // a relay without a rate limit in its configuration
		after(5 * time.Second)
		s.schedule(Task{ID: "other", Queue: "other", DeliverAt: time.Now().Add(time.Second)})
		due := time.Since(s.began) + time.Second
		stopThird := s.second(cfg)
		after(8 * time.Second)
		stopSecond()
		stopThird()
		states, err := s.Destinations(t.Context(), NoTx)
		check(t, err)
		if len(states) != 1 || !states[0].Busy || states[0].Waiting < flood/4 || states[0].Waiting > flood {
			t.Errorf("with more tasks than the rate limit allows: got %+v, want one busy destination with waiting tasks", states)
		}
		after(30 * time.Second)
		s.wantEffects("other", "other "+due.Round(time.Second).String())
		at := s.instants("mail")
		if len(at) != flood {
			t.Fatalf("%d tasks were delivered, want %d", len(at), flood)
		}
		wantRateLimit(t, at, rate*11/10+burst)
		took := at[flood-1] - began
		if least := time.Duration(flood) * time.Second / rate * 9 / 10; took < least {
			t.Errorf("all tasks were delivered within %v, want at least %v", took, least)
		}
		if most := time.Duration(flood) * time.Second / rate * 10 / 9; took > most {
			t.Errorf("all deliveries took %v, want at most %v", took, most)
		}
	})
}

// instants returns the times of the effects in a queue, in order.
func (s *site) instants(queue string) (list []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.effects {
		if e.queue == queue {
			list = append(list, e.at)
		}
	}
	slices.Sort(list)
	return list
}

// wantRateLimit fails the test if there are more than most effects within any second.
func wantRateLimit(t *testing.T, at []time.Duration, most int) {
	t.Helper()
	for i, j := 0, 0; j < len(at); j++ {
		for at[j]-at[i] >= time.Second {
			i++
		}
		if n := j - i + 1; n > most {
			t.Fatalf("%d tasks took effect within a second from %v, want at most %d", n, at[i], most)
		}
	}
}

// Tasks that are due at a rate below the limit are on time.
func TestRateLimitDelaysNoTaskBelowIt(t *testing.T) {
	cfg := Config{RateLimits: []RateLimit{{Queue: "mail", PerSecond: 10, Burst: 5}}}
	onSite(t, cfg, func(t *testing.T, s *site) {
		s.consume("mail", Handler(s.db, s.noted(nil)))
		from := s.began.Add(time.Hour)
		for i := range 100 {
			s.schedule(Task{ID: fmt.Sprint(i), Queue: "mail", DeliverAt: from.Add(time.Duration(i) * 200 * time.Millisecond)})
		}
		after(2 * time.Hour)
		at := s.instants("mail")
		if len(at) != 100 {
			t.Fatalf("%d tasks were delivered, want 100", len(at))
		}
		for i, x := range at {
			if late := x - time.Hour - time.Duration(i)*200*time.Millisecond; late < 0 || late > 20*time.Millisecond {
				t.Errorf("task %d is late by %v, want 0 to 20ms", i, late)
			}
		}
	})
}

// Rates below one per second work, and expired tasks do not count towards a rate limit.
func TestSlowRateLimitAndExpiry(t *testing.T) {
	cfg := Config{RateLimits: []RateLimit{{Queue: "mail", PerSecond: 0.1}}}
	onSite(t, cfg, func(t *testing.T, s *site) {
		s.consume("mail", Handler(s.db, s.noted(nil)))
		for i := range 50 {
			s.schedule(Task{ID: fmt.Sprint("over", i), Queue: "mail", DeliverAt: s.began.Add(-time.Hour), ExpiresAfter: time.Minute})
		}
		for i := range 4 {
			s.schedule(Task{ID: fmt.Sprint(i), Queue: "mail", DeliverAt: s.began})
		}
		after(5 * time.Minute)
		at := s.instants("mail")
		if len(at) != 4 {
			t.Fatalf("%d tasks were delivered, want 4", len(at))
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap < 10*time.Second || gap > 12*time.Second {
				t.Errorf("the gap between two tasks is %v, want 10s to 12s", gap)
			}
		}
	})
}

func TestRateLimitsAreChecked(t *testing.T) {
	for _, x := range []RateLimit{
		{}, {Queue: "a", Exchange: "b"}, {Queue: "a", PerSecond: -1}, {Queue: "a", PerSecond: 1e6}, {Queue: "a", PerSecond: 1e-9},
		{Queue: "a", PerSecond: 1, Burst: -1},
	} {
		if _, err := New(nil, nil, Config{RateLimits: []RateLimit{x}}); !errors.Is(err, ErrConfig) {
			t.Errorf("New with the rate limit %+v: got %v, want ErrConfig", x, err)
		}
	}
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	for _, d := range []topology.Destination{{}, {Queue: "a", Exchange: "b"}, {Exchange: "e", RoutingKey: "k"}} {
		if err := s.Pause(t.Context(), NoTx, d, ""); !errors.Is(err, ErrConfig) {
			t.Errorf("Pause of %v: got %v, want ErrConfig", d, err)
		}
	}
	if err := s.Resume(t.Context(), NoTx, mail, -1); !errors.Is(err, ErrConfig) {
		t.Errorf("Resume with a negative spread: got %v, want ErrConfig", err)
	}
}

// A pause takes effect with the caller's transaction.
func TestPauseInATransaction(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, s.Pause(t.Context(), tx, mail, "alice"))
	check(t, tx.Rollback())
	if states, err := s.Destinations(t.Context(), NoTx); err != nil || len(states) != 0 {
		t.Errorf("after a rollback: got the destinations %+v, error %v, want none and no error", states, err)
	}
}

// Tasks that a pause or a rate limit holds back count neither as overdue nor as unsent. A rate limit that no relay
// applies does not hold tasks back.
func TestBacklogOfHeldDestinations(t *testing.T) {
	store, db := openStore(t, &recorder{}, Config{Batch: 10})
	defer func() { _ = db.Close() }()
	now := time.Now().Truncate(time.Millisecond)
	store.goBy(func() time.Time { return now })
	read := func() (b Backlog, unheld []string) {
		t.Helper()
		b, err := store.Backlog(t.Context(), nil, 1000)
		check(t, err)
		for task, err := range store.List(t.Context(), NoTx, Filter{Status: StatusPending, DueTo: now, Limit: 5, Unheld: true}) {
			check(t, err)
			unheld = append(unheld, task.ID)
		}
		return b, unheld
	}
	for i := range 30 {
		at := now.Add(time.Duration(i-100) * time.Second)
		check(t, store.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint("paused", i), Queue: "paused", DeliverAt: at.Add(-time.Hour)}))
		check(t, store.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint("mail", i), Queue: "mail", DeliverAt: at.Add(-time.Minute)}))
	}
	for i, in := range []time.Duration{-40, -30, time.Hour} {
		check(t, store.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint("plain", i), Queue: "plain", DeliverAt: now.Add(in)}))
	}
	check(t, store.Pause(t.Context(), NoTx, topology.Destination{Queue: "paused"}, ""))
	check(t, store.SetRateLimit(t.Context(), NoTx, RateLimit{Queue: "mail", PerSecond: 1, Burst: 2}))
	b, unheld := read()
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{"paused", b.Paused, 30},
		{"throttled", b.Throttled, 0},
		{"overdue", b.Overdue, 32},
		{"unsent", b.Unsent, 33},
	} {
		if c.got != c.want {
			t.Errorf("without a relay: %d tasks are %s, want %d", c.got, c.name, c.want)
		}
	}
	if want := now.Add(-160 * time.Second); !b.Oldest.Equal(want) {
		t.Errorf("without a relay: the oldest is due at %v, want %v", b.Oldest, want)
	}
	switch {
	case len(unheld) != 5:
		t.Errorf("without a relay: %d tasks are not held back, want 5: %v", len(unheld), unheld)
	case unheld[0] != "mail0":
		t.Errorf("without a relay: the first task that is not held back is %s, want mail0", unheld[0])
	}
	if _, _, err := store.relay.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, unheld = read()
	if b.Paused != 30 || b.Throttled < 20 || b.Unsent != 0 || b.Overdue > 10 || len(unheld) == 0 {
		t.Errorf("while the rate limit is in use: got backlog %+v and unheld tasks %v, want 30 paused, at least 20 throttled, none unsent and at most 10 overdue", b, unheld)
	}
	for _, id := range unheld {
		if got, err := store.Get(t.Context(), NoTx, id); err != nil || got.Sends == 0 {
			t.Errorf("task %s, which is not held back: got %d sends and the error %v, want at least 1 and no error", id, got.Sends, err)
		}
	}
	now = now.Add(time.Minute)
	if b, _ = read(); b.Throttled != 0 || b.Unsent < 20 {
		t.Errorf("a minute after the relay died: got %+v, want no throttled and 20 unsent tasks", b)
	}
}

// If a claim is delayed after the relay has read the pauses and rate limits, for example by a slow database, the claim
// still respects the current ones: it claims nothing during a pause, and no more than a new rate limit allows.
func TestClaimUsesTheCurrentGates(t *testing.T) {
	s, db := openStore(t, &recorder{}, Config{})
	defer func() { _ = db.Close() }()
	var tasks []Task
	for i := range 20 {
		tasks = append(tasks, Task{ID: fmt.Sprint(i), Queue: "mail", DeliverAt: time.Now()})
	}
	check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))
	until := time.Now().Add(time.Minute).UnixMilli()
	lanes, _, err := s.relay.Look(t.Context(), rows.ToSend, until)
	check(t, err)
	if len(lanes) != 1 {
		t.Fatalf("Look: got the lanes %v, want one", lanes)
	}
	claim := func() int {
		t.Helper()
		list, err := s.relay.Claim(t.Context(), rows.ToSend, []rows.ClaimRequest{{Lane: lanes[0].Lane, Until: until, Most: 100}})
		check(t, err)
		return len(list)
	}
	check(t, s.Pause(t.Context(), NoTx, mail, "alice"))
	if n := claim(); n != 0 {
		t.Errorf("%d tasks were claimed during a pause, want 0", n)
	}
	check(t, s.Resume(t.Context(), NoTx, mail, 0))
	_, _, err = s.relay.Look(t.Context(), rows.ToSend, until)
	check(t, err)
	check(t, s.SetRateLimit(t.Context(), NoTx, RateLimit{Queue: "mail", PerSecond: 1, Burst: 3}))
	if n := claim(); n > 4 {
		t.Errorf("%d tasks were claimed with a rate limit of one a second and a burst of three, want at most 4", n)
	}
}
