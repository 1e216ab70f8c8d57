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

// prove records a confirm for the entry's queue, so that the queue counts as working.
func prove(f *Window, e Entry) {
	s, _ := f.TryEnter(e, windowBytes)
	f.leave(s, taken)
}

// fill uses all the available capacity, and returns the messages that it has added.
func fill(f *Window, e Entry) (shares []Share) {
	for {
		s, ok := f.TryEnter(e, windowBytes)
		if !ok {
			return shares
		}
		shares = append(shares, s)
	}
}

// A queue that confirms nothing gets at most half of the window, and after a second
// nothing. It is tried with one message each second, and gets all its capacity again when
// it confirms.
func TestAStuckQueueLeavesTheWindowToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		stuck, other := into(f, "stuck", "a"), into(f, "other", "a")
		prove(f, stuck)
		prove(f, other)
		held := fill(f, stuck)
		if len(held) != 5 {
			t.Fatalf("%d messages into one queue, want half of 10", len(held))
		}
		busy := fill(f, other)
		if len(busy) != 5 {
			t.Fatalf("%d messages for other queues while one queue is stuck, want 5", len(busy))
		}
		for _, s := range busy {
			f.leave(s, taken)
		}
		<-time.After(2 * stuckAfter)
		third := into(f, "third", "a")
		prove(f, third)
		all := append(fill(f, other), fill(f, third)...)
		if len(all) != 10 {
			t.Fatalf("%d messages for other queues while one queue has been stuck for long, want all 10", len(all))
		}
		for _, s := range all {
			f.leave(s, taken)
		}

		texts := map[string]bool{} // the text is the same however long it lasts
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.Enter(ctx, stuck, windowBytes)
			cancel()
			if e, ok := errors.AsType[*StuckError](err); !ok || e.Queue != "stuck" || time.Since(e.Since) < stuckAfter || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf(`got %v, want context.DeadlineExceeded and a *StuckError with Queue = "stuck" and Since at least %v ago`,
					err, stuckAfter)
			}
			texts[fmt.Sprint(err)] = true
		}
		if len(texts) != 1 {
			t.Errorf("texts %v, want only one", texts)
		}
		f.leave(held[0], taken)
		now := fill(f, stuck)
		if len(now) != 1 {
			t.Errorf("%d messages into the queue that confirms again, want 1, as 4 of 5 are still out", len(now))
		}
		for _, s := range append(held[1:], now...) {
			f.leave(s, taken)
		}
		if n := len(fill(f, stuck)); n != 5 {
			t.Errorf("%d messages at the end, want 5", n)
		}
	})
}

// While there is capacity, a stuck queue gets one message a second, so that a queue whose confirm
// was lost recovers.
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
			t.Errorf("messages after %v, want %s", got, want)
		}
		f.leave(shares[0], taken)
		if _, ok := f.TryEnter(e, windowBytes); !ok {
			t.Error("the lane is closed, although its queue confirms again")
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
			t.Fatal("a message may overtake the one that is still on the trial channel")
		}
		time.AfterFunc(time.Millisecond, func() { f.leave(two, taken) })
		s, err := f.Enter(t.Context(), e, windowBytes)
		if err != nil || !s.proven || one.proven || two.proven {
			t.Errorf("got %v, proven %t, %t, %t, want no error, true and false", err, one.proven, two.proven, s.proven)
		}
		f.leave(s, taken)
	})
}

// A refusal is believed once it has lasted for a while. After that, messages are refused for a short time without
// asking the broker. The refusal is forgotten when a message is accepted.
func TestRefusalIsBelievedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		e := into(f, "q", "a")
		if f.refused(e.route, ErrNacked) {
			t.Error("a single nack is considered final")
		}
		if now := into(f, "q", "a"); !now.Suspect || now.Refused != nil {
			t.Errorf("got %+v, want Suspect = true and Refused = nil", now)
		}
		<-time.After(refusedFor)
		if !f.refused(e.route, ErrNacked) {
			t.Error("nacks that have lasted for refusedFor are not considered final")
		}
		if now := into(f, "q", "a"); now.Refused == nil {
			t.Errorf("got %+v, want a refusal", now)
		}
		<-time.After(refusedFor)
		if now := into(f, "q", "a"); !now.Suspect || now.Refused != nil {
			t.Errorf("after refusedFor, got %+v, want another try", now)
		}
		prove(f, e)
		if now := into(f, "q", "a"); now.Suspect {
			t.Errorf("got %+v, want Suspect = false", now)
		}
	})
}

// The number of idle queues that a window remembers is bounded.
func TestWindowForgetsIdleQueues(t *testing.T) {
	f := testWindow(10)
	for i := range 3 * maxRoutes {
		prove(f, into(f, "q", fmt.Sprint(i)))
	}
	if len(f.routes) > maxRoutes || len(f.lanes) != 1 {
		t.Errorf("%d routes, %d lanes, want at most %d and 1", len(f.routes), len(f.lanes), maxRoutes)
	}
}

// The methods that show the state of a window do not lock. Otherwise they would hang forever in a
// bubble.
func TestWindowStateNeedsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		fill(f, into(f, "q", "a"))
		<-time.After(2 * stuckAfter)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.InFlight() == 0 || len(f.Stuck()) != 1 {
			t.Errorf("%d in flight, stuck: got %v, want some in flight and one stuck queue", f.InFlight(), f.Stuck())
		}
	})
}

// A queue that has confirmed nothing is tried on a separate channel with one message at a time, because another queue
// may block the trial channel.
func TestStuckTrialIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWindow(100, func([]string) {})
		e := f.Find(Route{Exchange: "x"}, "queue", func() string { return "" })
		lost, _ := f.TryEnter(e, windowBytes)
		<-time.After(3 * stuckAfter)
		probe, ok := f.TryEnter(e, windowBytes)
		if lost.probe || !ok || !probe.probe {
			t.Fatalf("the first message is a probe: %t; the next one: %t, admitted: %t, want false, true and true", lost.probe, probe.probe, ok)
		}
		<-time.After(3 * stuckAfter)
		if _, ok := f.TryEnter(e, windowBytes); ok {
			t.Fatal("two probes were admitted concurrently")
		}
		f.leave(probe, taken)
		next, ok := f.TryEnter(e, windowBytes)
		if !ok || !next.proven || next.probe {
			t.Errorf("after the probe's confirm: admitted %t, proven %t, a probe %t, want true, true and false", ok, next.proven, next.probe)
		}
		f.leave(lost, taken) // the late answer to an earlier message
		f.leave(next, taken)
		if n := e.route.trial; n != 0 || f.InFlight() != 0 {
			t.Errorf("%d messages on the trial channel and %d in flight, want none", n, f.InFlight())
		}
	})
}

// Messages that wait for longer than a second and are then not written, for example because an
// alarm blocks the connection, do not make their queue count as stuck.
func TestUnwrittenMessagesAreNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testWindow(10)
		e := into(f, "q", "a")
		prove(f, e)
		held := fill(f, e)
		<-time.After(2 * stuckAfter)
		if len(f.Stuck()) != 1 {
			t.Fatalf("stuck after two seconds: got %v, want one queue", f.Stuck())
		}
		for _, s := range held {
			f.GiveUp(s)
		}
		if left := f.Stuck(); len(left) > 0 {
			t.Errorf("lanes without messages in flight count as stuck: %v", left)
		}
	})
}
