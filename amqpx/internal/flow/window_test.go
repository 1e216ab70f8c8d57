package flow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func testWindow(maxInFlight int) *Window { return newWindow(maxInFlight, func([]string) {}) }

func into(f *Window, queue, dest string) Entry {
	return f.Find(Route{Exchange: queue, To: [3]string{dest}}, queue, nil)
}

// prove records a confirm for the entry's queue, so the queue counts as working.
func prove(f *Window, e Entry) {
	s, _ := f.TryEnter(e, windowBytes)
	f.leave(s, taken)
}

// fill uses all capacity that is available for the entry, and returns its shares.
func fill(f *Window, e Entry) (shares []Share) {
	for {
		s, ok := f.TryEnter(e, windowBytes)
		if !ok {
			return shares
		}
		shares = append(shares, s)
	}
}

// A queue that stops confirming gets at most half of the window, which limits the number of unconfirmed messages. After
// a second, it gets nothing except one message each second as a probe. When it confirms again, it gets its capacity
// back.
func TestAStuckQueueLeavesTheWindowToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		stuck, other := into(f, "stuck", "a"), into(f, "other", "a")
		prove(f, stuck)
		prove(f, other)
		held := fill(f, stuck)
		if len(held) != 5 {
			t.Fatalf("a full window with one queue: got %d messages, want 5, half of the window", len(held))
		}
		busy := fill(f, other)
		if len(busy) != 5 {
			t.Fatalf("the rest of the window for the other queue: got %d messages, want 5", len(busy))
		}
		for _, s := range busy {
			f.leave(s, taken)
		}
		<-time.After(2 * stuckAfter)
		third := into(f, "third", "a")
		prove(f, third)
		all := append(fill(f, other), fill(f, third)...)
		if len(all) != 10 {
			t.Fatalf("the window while one queue is stuck: got %d messages for two other queues, want all 10", len(all))
		}
		for _, s := range all {
			f.leave(s, taken)
		}

		texts := map[string]bool{} // the error's text must not depend on how long the queue has been stuck
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.Enter(ctx, stuck, windowBytes)
			cancel()
			if e, ok := errors.AsType[*StuckError](err); !ok || e.Queue != "stuck" || time.Since(e.Since) < stuckAfter || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf(`Enter for a stuck queue: got %v, want context.DeadlineExceeded and a *StuckError with Queue = "stuck" and Since at least %v ago`,
					err, stuckAfter)
			}
			texts[fmt.Sprint(err)] = true
		}
		if len(texts) != 1 {
			t.Errorf("Enter for a stuck queue: got error texts %v, want the same one each time", texts)
		}
		f.leave(held[0], taken)
		now := fill(f, stuck)
		if len(now) != 1 {
			t.Errorf("the stuck queue after one confirm: got %d messages in the window, want 1, because 4 of 5 are still in flight", len(now))
		}
		for _, s := range append(held[1:], now...) {
			f.leave(s, taken)
		}
		if n := len(fill(f, stuck)); n != 5 {
			t.Errorf("the stuck queue after all confirms: got %d messages in the window, want 5", n)
		}
	})
}

// While there is capacity, a stuck queue gets one message a second, so a queue recovers even if a confirm was lost.
func TestAStuckQueueIsTriedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(100)
		e := into(f, "stuck", "a")
		prove(f, e)
		lost, _ := f.TryEnter(e, windowBytes)
		<-time.After(stuckAfter + time.Millisecond)
		start := time.Now()
		var got []time.Duration
		var shares []Share
		for range 3 {
			s, err := f.Enter(t.Context(), e, windowBytes)
			if err != nil {
				t.Fatal(err)
			}
			shares = append(shares, s)
			got = append(got, time.Since(start).Round(stuckAfter/2))
		}
		if want := fmt.Sprint([]time.Duration{stuckAfter, 2 * stuckAfter, 3 * stuckAfter}); fmt.Sprint(got) != want {
			t.Errorf("the stuck queue got messages after %v, want after %s", got, want)
		}
		f.leave(shares[0], taken)
		if _, ok := f.TryEnter(e, windowBytes); !ok {
			t.Error("TryEnter after a confirm: got false, want true")
		}
		f.leave(lost, silence)
	})
}

// A queue's messages move to the shared channel after the first confirm, once all messages on the trial channel are
// confirmed.
func TestQueueMovesWhenItsTrialIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		e := into(f, "q", "a")
		one, _ := f.TryEnter(e, windowBytes)
		two, _ := f.TryEnter(e, windowBytes)
		f.leave(one, taken)
		if _, ok := f.TryEnter(e, windowBytes); ok {
			t.Fatal("TryEnter with a message on the trial channel: got true, want false, so that messages stay in order")
		}
		time.AfterFunc(time.Millisecond, func() { f.leave(two, taken) })
		s, err := f.Enter(t.Context(), e, windowBytes)
		if err != nil || !s.proven || one.proven || two.proven {
			t.Errorf("Enter: got %v, want nil; proven of the three messages: got %t, %t, %t, want false, false, true",
				err, one.proven, two.proven, s.proven)
		}
		f.leave(s, taken)
	})
}

// When a queue has refused messages for refusedFor, the window refuses further messages for the same time without
// asking the broker. It forgets the refusal when a message is accepted.
func TestRefusalIsBelievedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		e := into(f, "q", "a")
		if f.refused(e.route, ErrNacked) {
			t.Error("refused after a single nack: got true, want false")
		}
		if now := into(f, "q", "a"); !now.Suspect || now.Refused != nil {
			t.Errorf("after a single nack: got %+v, want Suspect = true and Refused = nil", now)
		}
		<-time.After(refusedFor)
		if !f.refused(e.route, ErrNacked) {
			t.Error("refused after refusedFor: got false, want true")
		}
		if now := into(f, "q", "a"); now.Refused == nil {
			t.Errorf("after nacks for refusedFor: got %+v, want Refused set", now)
		}
		<-time.After(refusedFor)
		if now := into(f, "q", "a"); !now.Suspect || now.Refused != nil {
			t.Errorf("when the refusal has lasted for refusedFor: got %+v, want Suspect = true and Refused = nil", now)
		}
		prove(f, e)
		if now := into(f, "q", "a"); now.Suspect {
			t.Errorf("after a confirm: got %+v, want Suspect = false", now)
		}
	})
}

// A window keeps only a limited number of idle routes.
func TestWindowForgetsIdleQueues(t *testing.T) {
	f := testWindow(10)
	for i := range 3 * maxRoutes {
		prove(f, into(f, "q", fmt.Sprint(i)))
	}
	if len(f.routes) > maxRoutes || len(f.lanes) != 1 {
		t.Errorf("the window after a message to each of many routes: got %d routes and %d lanes, want at most %d routes and 1 lane", len(f.routes), len(f.lanes), maxRoutes)
	}
}

// InFlight and Stuck do not lock the window. If they did, they would hang in this test.
func TestWindowStateNeedsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		fill(f, into(f, "q", "a"))
		<-time.After(2 * stuckAfter)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.InFlight() == 0 || len(f.Stuck()) != 1 {
			t.Errorf("while the window's lock is held: got %d messages in flight and stuck queues %v, want at least 1 message and one queue", f.InFlight(), f.Stuck())
		}
	})
}

// A queue that has confirmed nothing for a while is probed with one message at a time on a separate channel, because
// another queue may block the trial channel.
func TestStuckTrialIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWindow(100, func([]string) {})
		e := f.Find(Route{Exchange: "x"}, "queue", func() string { return "" })
		lost, _ := f.TryEnter(e, windowBytes)
		<-time.After(3 * stuckAfter)
		probe, ok := f.TryEnter(e, windowBytes)
		if lost.probe || !ok || !probe.probe {
			t.Fatalf("first message: got probe %t, want false; second: got probe %t, admitted %t, want true, true", lost.probe, probe.probe, ok)
		}
		<-time.After(3 * stuckAfter)
		if _, ok := f.TryEnter(e, windowBytes); ok {
			t.Fatal("TryEnter during a probe: got true, want false")
		}
		f.leave(probe, taken)
		next, ok := f.TryEnter(e, windowBytes)
		if !ok || !next.proven || next.probe {
			t.Errorf("after the probe's confirm: got admitted %t, proven %t, probe %t, want true, true, false", ok, next.proven, next.probe)
		}
		f.leave(lost, taken) // the confirm of the first message is late
		f.leave(next, taken)
		if n := e.route.trial; n != 0 || f.InFlight() != 0 {
			t.Errorf("after all confirms: got %d messages on the trial channel and %d in flight, want 0 and 0", n, f.InFlight())
		}
	})
}

// Messages that are given up before they are written, for example because an alarm blocks the connection, do not make
// their queue count as stuck.
func TestUnwrittenMessagesAreNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		e := into(f, "q", "a")
		prove(f, e)
		held := fill(f, e)
		<-time.After(2 * stuckAfter)
		if len(f.Stuck()) != 1 {
			t.Fatalf("Stuck after two seconds: got %v, want one queue", f.Stuck())
		}
		for _, s := range held {
			f.GiveUp(s)
		}
		if left := f.Stuck(); len(left) > 0 {
			t.Errorf("Stuck without messages in flight: got %v, want none", left)
		}
	})
}
