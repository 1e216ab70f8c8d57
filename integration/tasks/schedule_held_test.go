package tasks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The rate limit spreads out a burst of tasks, no matter which of several relays claims them, and does not delay the
// tasks of other destinations.
func TestRateLimitOnEachDatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		const rate, burst, flood = 500, 50, 2000
		cfg := schedule.Config{PollInterval: 50 * time.Millisecond, RateLimits: []schedule.RateLimit{{Queue: "mail", PerSecond: rate, Burst: burst}}}
		var out outbox
		first := newStore(t, db, &out, cfg)
		suite.MustSucceed(t, first.SetRateLimit(t.Context(), schedule.NoTx, cfg.RateLimits[0])) // before the second one starts
		now := time.Now()
		tasks := make([]schedule.Task, 0, flood+1)
		for i := range flood {
			tasks = append(tasks, schedule.Task{ID: fmt.Sprint("mail-", i), Queue: "mail", DeliverAt: now})
		}
		suite.MustSucceed(t, first.ScheduleBatch(t.Context(), schedule.NoTx, append(tasks, schedule.Task{ID: "other", Queue: "other", DeliverAt: now})))
		runStore(t, first)
		stop := runStore(t, newStore(t, db, &out, schedule.Config{PollInterval: 50 * time.Millisecond}))
		suite.Eventually(t, "some tasks are sent", func() bool { return len(out.messages()) > flood/4 })
		if out.count("other") != 1 {
			t.Errorf("another queue's task was sent %d times during the burst, want once", out.count("other"))
		}
		states, err := first.Destinations(t.Context(), schedule.NoTx)
		suite.MustSucceed(t, err)
		if len(states) != 1 || states[0].PerSecond != rate || states[0].Burst != burst || !states[0].Busy {
			t.Errorf("with more tasks than the rate limit allows: got %+v, want one busy destination with PerSecond = %v and Burst = %v", states, rate, burst)
		}
		stop()
		suite.Eventually(t, "all tasks are sent", func() bool { return len(out.messages()) == flood+1 })
		var due []time.Time
		for _, m := range out.messages() {
			if m.Queue == "mail" {
				due = append(due, m.DeliverAt)
			}
		}
		slices.SortFunc(due, time.Time.Compare)
		for i, j := 0, 0; j < len(due); j++ {
			for due[j].Sub(due[i]) >= time.Second {
				i++
			}
			if n := j - i + 1; n > rate*11/10+burst {
				t.Fatalf("%d tasks within a second, want at most %d", n, rate*11/10+burst)
			}
		}
		took := due[len(due)-1].Sub(due[0])
		t.Logf("%d tasks in %v: %.3f of the rate limit", flood, took, float64(flood-burst)/took.Seconds()/rate)
	})
}

// On every database, a pause recalls the messages that were sent to the broker. When the pause ends, the tasks that it
// held are sent.
func TestPauseOnEachDatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		mail := topology.Destination{Queue: "mail"}
		var out outbox
		// Nothing handles these tasks. The grace period keeps the relay from sending them again.
		s := newStore(t, db, &out, schedule.Config{PollInterval: 20 * time.Millisecond, Grace: time.Hour})
		runStore(t, s)
		var tasks []schedule.Task
		for i := range 1200 { // more than a batch
			tasks = append(tasks, schedule.Task{ID: fmt.Sprint("mail-", i), Queue: "mail", DeliverAt: time.Now().Add(30 * time.Second)})
		}
		far := schedule.Task{ID: "far", Queue: "mail", DeliverAt: time.Now().Add(10 * time.Hour)}
		other := schedule.Task{ID: "other", Queue: "other", DeliverAt: time.Now().Add(30 * time.Second)}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, append(tasks, far, other)))
		sent := func() int64 { return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") }
		suite.Eventually(t, "all tasks are marked as sent", func() bool { return sent() == 1202 })
		suite.MustSucceed(t, s.Pause(t.Context(), schedule.NoTx, mail, "alice"))
		suite.Eventually(t, "the tasks that are due soon are recalled", func() bool { return sent() == 2 })
		if got := taskOf(t, s, "mail-7"); got.Version != 2 || got.Status != schedule.StatusPending || !got.SentAt.IsZero() {
			t.Errorf("the recalled task: got %+v, want Version = 2, Status = schedule.StatusPending and SentAt zero", got)
		}
		for _, id := range []string{"far", "other"} {
			if got := taskOf(t, s, id); got.Version != 1 || got.Sends != 1 {
				t.Errorf("%s: got %+v, want Version = 1 and Sends = 1", id, got)
			}
		}
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "new", Queue: "mail", DeliverAt: time.Now()}))
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "proof", Queue: "other", DeliverAt: time.Now()}))
		suite.Eventually(t, "another queue's task is sent", func() bool { return out.count("proof") == 1 })
		states, err := s.Destinations(t.Context(), schedule.NoTx)
		suite.MustSucceed(t, err)
		if len(states) != 1 || states[0].PausedBy != "alice" || states[0].PausedAt.IsZero() || states[0].Waiting != 1 || states[0].Destination() != mail {
			t.Errorf("got %+v, want mail paused by alice with one waiting task", states)
		}
		if out.count("new") != 0 {
			t.Errorf("a task was sent %d times during the pause, want 0", out.count("new"))
		}
		suite.MustSucceed(t, s.Resume(t.Context(), schedule.NoTx, mail, 0))
		defer func() {
			if t.Failed() {
				t.Logf("the task new was sent %d times and mail-0 %d times; %d tasks are marked as sent", out.count("new"), out.count("mail-0"), sent())
			}
		}()
		suite.Eventually(t, "all tasks are sent again", func() bool { return out.count("new") == 1 && out.count("mail-0") == 2 && sent() == 1204 })
		post := topology.Destination{Queue: "post"}
		suite.MustSucceed(t, s.Pause(t.Context(), schedule.NoTx, post, ""))
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "newer", Queue: "post", DeliverAt: time.Now().Add(-time.Second)}))
		suite.MustSucceed(t, s.Resume(t.Context(), schedule.NoTx, post, time.Hour))
		states, err = s.Destinations(t.Context(), schedule.NoTx)
		suite.MustSucceed(t, err)
		if len(states) != 1 || states[0].SpreadUntil.IsZero() || !states[0].PausedAt.IsZero() {
			t.Errorf("after Resume: got %+v, want one destination with SpreadUntil set and PausedAt zero", states)
		}
		suite.Eventually(t, "a task that was scheduled after the pause is sent", func() bool { return out.count("newer") == 1 })
	})
}

// On every database, a store whose clock is an hour ahead runs and pauses by the database's clock.
func TestWrongClockOnEachDatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{Now: func() time.Time { return time.Now().Add(time.Hour) }})
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(10 * time.Hour)}))
		suite.MustSucceed(t, s.RunNow(t.Context(), schedule.NoTx, "a"))
		suite.MustSucceed(t, s.Pause(t.Context(), schedule.NoTx, topology.Destination{Queue: "q"}, "me"))
		states, err := s.Destinations(t.Context(), schedule.NoTx)
		suite.MustSucceed(t, err)
		a := taskOf(t, s, "a")
		for what, at := range map[string]time.Time{"created": a.CreatedAt, "fired": a.DeliverAt, "paused": states[0].PausedAt} {
			if time.Since(at).Abs() > 30*time.Minute {
				t.Errorf("the time %s is %v from now, want at most 30m", what, time.Until(at))
			}
		}
	})
}
