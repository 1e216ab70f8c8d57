package amqpx

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func testFlow(maxInFlight int) *flow { return newFlow(maxInFlight, func([]string) {}) }

func into(f *flow, queue, dest string) entry {
	return f.find(&topology.Route{Exchange: queue, Queue: queue}, topology.Destination{Queue: dest})
}

// prove makes a way one on which a message was confirmed.
func prove(f *flow, e entry) {
	s, _ := f.tryEnter(e, windowBytes)
	f.leave(s, true, true)
}

// fill takes all the room there is, and tells how many messages that were.
func fill(f *flow, e entry) (shares []share) {
	for {
		s, ok := f.tryEnter(e, windowBytes)
		if !ok {
			return shares
		}
		shares = append(shares, s)
	}
}

// A queue that confirms nothing gets half of the window at most, and none of it
// after a second. It is tried with one message each second, and has all its room
// again when it confirms.
func TestAStuckQueueLeavesTheWindowToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFlow(10)
		stuck, other := into(f, "stuck", "a"), into(f, "other", "a")
		prove(f, stuck)
		prove(f, other)
		held := fill(f, stuck)
		if len(held) != 5 {
			t.Fatalf("%d messages into one queue; want half of 10", len(held))
		}
		busy := fill(f, other)
		if len(busy) != 5 {
			t.Fatalf("%d messages beside the stuck queue; want 5", len(busy))
		}
		for _, s := range busy {
			f.leave(s, true, true)
		}
		<-time.After(2 * stuckAfter)
		third := into(f, "third", "a")
		prove(f, third)
		all := append(fill(f, other), fill(f, third)...)
		if len(all) != 10 {
			t.Fatalf("%d messages beside a queue that is stuck for long; want all 10", len(all))
		}
		for _, s := range all {
			f.leave(s, true, true)
		}

		texts := map[string]bool{} // the same however long it lasts
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.enter(ctx, stuck, windowBytes)
			cancel()
			if e, ok := errors.AsType[*StuckError](err); !ok || e.Queue != "stuck" || time.Since(e.Since) < stuckAfter || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			texts[fmt.Sprint(err)] = true
		}
		if len(texts) != 1 {
			t.Errorf("texts %v", texts)
		}
		f.leave(held[0], true, true)
		now := fill(f, stuck)
		if len(now) != 1 {
			t.Errorf("%d messages into the queue that confirms again; want 1, as 4 of 5 are still out", len(now))
		}
		for _, s := range append(held[1:], now...) {
			f.leave(s, true, true)
		}
		if n := len(fill(f, stuck)); n != 5 {
			t.Errorf("%d messages at the end; want 5", n)
		}
	})
}

// With room left a stuck queue gets one message a second, so that one which lost
// a confirm for good comes back.
func TestAStuckQueueIsTriedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFlow(100)
		e := into(f, "stuck", "a")
		prove(f, e)
		lost, _ := f.tryEnter(e, windowBytes)
		<-time.After(stuckAfter + time.Millisecond)
		start := time.Now()
		var got []time.Duration
		var shares []share
		for range 3 {
			s, err := f.enter(t.Context(), e, windowBytes)
			if err != nil {
				t.Fatal(err)
			}
			shares = append(shares, s)
			got = append(got, time.Since(start).Round(stuckAfter/2))
		}
		if want := fmt.Sprint([]time.Duration{stuckAfter, 2 * stuckAfter, 3 * stuckAfter}); fmt.Sprint(got) != want {
			t.Errorf("messages after %v; want %s", got, want)
		}
		f.leave(shares[0], true, true)
		if _, ok := f.tryEnter(e, windowBytes); !ok {
			t.Error("closed although it confirms again")
		}
		f.leave(lost, false, false)
	})
}

// A way moves to the shared channel after its first confirm, when all its
// messages on the trial channel have theirs.
func TestAWayMovesWhenItsTrialIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFlow(10)
		e := into(f, "q", "a")
		one, _ := f.tryEnter(e, windowBytes)
		two, _ := f.tryEnter(e, windowBytes)
		f.leave(one, true, true)
		if _, ok := f.tryEnter(e, windowBytes); ok {
			t.Fatal("a message may overtake the one that is still on the trial channel")
		}
		time.AfterFunc(time.Millisecond, func() { f.leave(two, true, true) })
		s, err := f.enter(t.Context(), e, windowBytes)
		if err != nil || !s.proven || one.proven || two.proven {
			t.Errorf("%v, proven %t, %t, %t", err, one.proven, two.proven, s.proven)
		}
		f.leave(s, true, true)
	})
}

// A refusal is believed when it has stood for a while, then known without asking
// for a moment, and forgotten when a message is taken.
func TestARefusalStandsAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFlow(10)
		e := into(f, "q", "a")
		if f.refused(e.way, ErrNacked) {
			t.Error("believed at once")
		}
		if now := into(f, "q", "a"); !now.suspect || now.refused != nil {
			t.Errorf("%+v", now)
		}
		<-time.After(refusedFor)
		if !f.refused(e.way, ErrNacked) {
			t.Error("not believed")
		}
		if now := into(f, "q", "a"); now.refused == nil {
			t.Errorf("%+v", now)
		}
		<-time.After(refusedFor)
		if now := into(f, "q", "a"); !now.suspect || now.refused != nil {
			t.Errorf("not asked again: %+v", now)
		}
		prove(f, e)
		if now := into(f, "q", "a"); now.suspect {
			t.Errorf("%+v", now)
		}
	})
}

// What a flow remembers of ways that nobody uses is bounded.
func TestAFlowForgetsIdleWays(t *testing.T) {
	f := testFlow(10)
	for i := range 3 * maxWays {
		prove(f, into(f, "q", fmt.Sprint(i)))
	}
	if len(f.ways) > maxWays || len(f.lanes) != 1 {
		t.Errorf("%d ways, %d lanes", len(f.ways), len(f.lanes))
	}
}
