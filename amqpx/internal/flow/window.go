package flow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Window bounds what is unconfirmed on one connection: so many messages in all, and half
// of them in one lane, so that a queue which stops confirming leaves room for the others.
// What such a queue still holds after stuckAfter no longer counts towards the whole, and
// until it confirms again it gets one message each stuckAfter.
//
// It also knows on which ways the broker has taken a message, or refused one.
type Window struct {
	whole   *semaphore.Weighted
	perLane int64
	onStuck func(lanes []string) // is told of those that have become stuck

	mu       sync.Mutex
	lanes    map[laneKey]*lane
	ways     map[Way]*way
	watching bool          // look will run
	moved    chan struct{} // closed, and replaced, when somebody at the gate may go on

	// Written with mu held, and read without.
	inflight atomic.Int64
	stuck    atomic.Pointer[[]Stuck] // nil for none
}

// laneKey names the queue that a message enters. If the strategy does not name
// the queue, each way has its own lane.
type laneKey struct {
	queue string
	way   Way
}

// Way is where messages of one destination enter.
type Way struct {
	Exchange string    // to which they are published
	To       [3]string // identifies the destination
}

// Stuck is a queue that does not confirm.
type Stuck struct {
	Queue string
	Since time.Time // the last confirm, or the first message that waits for one
}

// StuckError is why a message could not enter a queue before its context ended.
type StuckError struct {
	Stuck

	Err error // the context's
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("queue %s confirms nothing: %v", e.Queue, e.Err)
}

// Unwrap returns the context's error.
func (e *StuckError) Unwrap() error { return e.Err }

// lane is what goes into one queue. Window.mu guards all but room.
type lane struct {
	name     string
	room     *semaphore.Weighted
	inflight int
	counted  int64     // what it holds of the window
	round    int       // counts how often that was written off
	moved    time.Time // the last answer, or the first publish of those in flight
	stuck    bool
	next     time.Time // when a stuck lane gets its next message
	probed   bool      // a message that tries a way into it is on its way
}

// way is a Way with what the broker has said of it on this connection. Window.mu guards
// it.
type way struct {
	proven  bool // a message was confirmed
	trial   int  // unconfirmed messages on the channel for what is not proven
	round   int  // counts how often those were written off
	refusal standing
}

// standing is the broker's standing refusal to take messages of a way.
type standing struct {
	err         error
	since, last time.Time
}

// windowBytes is the body size up to which a message counts as one.
const windowBytes = 16 << 10

// stuckAfter is how long a queue may confirm nothing before it counts as stuck.
const stuckAfter = time.Second

// maxWays bounds what a flow remembers of idle ways and lanes.
const maxWays = 1 << 13

func newWindow(maxInFlight int, onStuck func(lanes []string)) *Window {
	whole := int64(maxInFlight) * windowBytes
	return &Window{
		whole: semaphore.NewWeighted(whole), perLane: max(whole/2, windowBytes), onStuck: onStuck,
		lanes: map[laneKey]*lane{}, ways: map[Way]*way{}, moved: make(chan struct{}),
	}
}

// InFlight returns how many messages await their confirm. It takes no lock.
func (win *Window) InFlight() int { return int(win.inflight.Load()) }

// Stuck returns the queues that do not confirm, by name. It takes no lock.
func (win *Window) Stuck() []Stuck {
	if stuck := win.stuck.Load(); stuck != nil {
		return slices.Clone(*stuck)
	}
	return nil
}

// Share is the place of one message in its lane and in the window. It goes back with the
// outcome of its publication, or by GiveUp.
type Share struct {
	way    *way
	lane   *lane
	cost   int64
	round  int
	proven bool // when it was given
	trial  int  // the way's round, then
	probe  bool // it gets a channel to itself: the trial channel may be held up
}

// Cost returns what a message takes of the window.
func (win *Window) Cost(body []byte) int64 {
	return min(max(int64(len(body)), windowBytes), win.perLane)
}

// Entry is where a message may enter, as far as the broker has told.
type Entry struct {
	way     *way
	lane    *lane
	Suspect bool  // the broker has refused the last message of the way
	Refused error // the reason, while it is recent enough not to ask again
}

// Find returns where a message enters that goes a way into a queue. Without the queue's
// name it is known by the name of its destination.
func (win *Window) Find(wk Way, queue string, dest func() string) Entry {
	lk := laneKey{queue: queue}
	if queue == "" {
		lk.way = wk
	}
	win.mu.Lock()
	defer win.mu.Unlock()
	w, l := win.ways[wk], win.lanes[lk]
	if w == nil || l == nil {
		win.forgetIdle()
	}
	if w == nil {
		w = &way{}
		win.ways[wk] = w
	}
	if l == nil {
		l = &lane{name: queue, room: semaphore.NewWeighted(win.perLane)}
		if l.name == "" {
			l.name = dest()
		}
		win.lanes[lk] = l
	}
	e := Entry{way: w, lane: l}
	if r := w.refusal; r.err != nil {
		e.Suspect = true
		if r.last.Sub(r.since) >= refusedFor && time.Since(r.last) < refusedFor {
			e.Refused = r.err
		}
	}
	return e
}

// forgetIdle makes room where there are very many ways. What is forgotten is
// found out again.
func (win *Window) forgetIdle() {
	if len(win.ways) < maxWays && len(win.lanes) < maxWays {
		return
	}
	for k, w := range win.ways {
		if w.trial == 0 && w.refusal.err == nil {
			delete(win.ways, k)
		}
	}
	for k, l := range win.lanes {
		if l.inflight == 0 {
			delete(win.lanes, k)
		}
	}
}

// TryEnter returns a share if there is one without waiting.
func (win *Window) TryEnter(e Entry, cost int64) (Share, bool) {
	w, l := e.way, e.lane
	if !l.room.TryAcquire(cost) {
		return Share{}, false
	}
	if open, _, _ := win.gate(w, l); !open || !win.whole.TryAcquire(cost) {
		l.room.Release(cost)
		return Share{}, false
	}
	return win.enterNow(w, l, cost), true
}

// Enter waits for a share. Its error is the context's, or a *StuckError if a queue that
// does not confirm is the reason.
func (win *Window) Enter(ctx context.Context, e Entry, cost int64) (Share, error) {
	w, l := e.way, e.lane
	if err := l.room.Acquire(ctx, cost); err != nil {
		return Share{}, win.why(l, err)
	}
	for {
		open, moved, wait := win.gate(w, l)
		if open {
			break
		}
		t := time.NewTimer(wait)
		select {
		case <-moved:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			l.room.Release(cost)
			return Share{}, win.why(l, ctx.Err())
		}
		t.Stop()
	}
	if err := win.whole.Acquire(ctx, cost); err != nil {
		l.room.Release(cost)
		return Share{}, win.why(l, err)
	}
	return win.enterNow(w, l, cost), nil
}

// gate reports whether a message may go on now, and if not, what to wait for.
func (win *Window) gate(w *way, l *lane) (open bool, moved <-chan struct{}, wait time.Duration) {
	win.mu.Lock()
	defer win.mu.Unlock()
	switch {
	case l.stuck && !w.proven:
		if l.probed {
			return false, win.moved, stuckAfter
		}
	case w.proven && w.trial > 0:
		// It moves to the shared channel when the trial channel has all its confirms:
		// on two channels at once its messages could overtake each other.
		return false, win.moved, stuckAfter
	case !l.stuck:
		return true, nil, 0
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, win.moved, wait
	}
	l.next = now.Add(stuckAfter)
	return true, nil, 0
}

func (win *Window) enterNow(w *way, l *lane, cost int64) Share {
	win.mu.Lock()
	defer win.mu.Unlock()
	probe := l.stuck && !w.proven
	switch {
	case probe: // which may overtake those on the trial channel
		l.probed = true
		w.trial = 0
		w.round++
	case !w.proven:
		w.trial++
	}
	if l.inflight == 0 {
		l.moved = time.Now()
	}
	l.inflight++
	l.counted += cost
	win.inflight.Add(1)
	if !win.watching {
		win.watching = true
		time.AfterFunc(stuckAfter, win.look)
	}
	return Share{way: w, lane: l, cost: cost, round: l.round, proven: w.proven, trial: w.round, probe: probe}
}

// answer is what the broker has said about a message.
type answer int

const (
	silence answer = iota // nothing
	taken
	notTaken
)

// GiveUp returns the share of a message that was not written.
func (win *Window) GiveUp(s Share) { win.leave(s, silence) }

func (win *Window) leave(s Share, a answer) {
	l, w := s.lane, s.way
	win.mu.Lock()
	win.inflight.Add(-1)
	l.inflight--
	counted := s.round == l.round
	if counted {
		l.counted -= s.cost
	}
	if a != silence {
		l.moved = time.Now()
	}
	unstuck := l.stuck && (a != silence || l.inflight == 0) // what was never written tells nothing
	if unstuck {
		l.stuck = false
		win.showStuck()
	}
	switch {
	case s.probe:
		l.probed = false
	case !s.proven && s.trial == w.round:
		w.trial--
	}
	if a == taken && (!w.proven || w.refusal.err != nil) {
		w.proven, w.refusal = true, standing{}
	}
	if unstuck || s.probe || !s.proven && w.trial == 0 {
		close(win.moved)
		win.moved = make(chan struct{})
	}
	win.mu.Unlock()

	l.room.Release(s.cost)
	if counted {
		win.whole.Release(s.cost)
	}
}

// look writes off what stuck lanes hold of the window. It runs as long as
// anything is in flight.
func (win *Window) look() {
	now := time.Now()
	var stuck []string
	win.mu.Lock()
	for _, l := range win.lanes {
		if l.inflight == 0 || now.Sub(l.moved) < stuckAfter {
			continue
		}
		if !l.stuck {
			l.stuck, l.next = true, now.Add(stuckAfter)
			stuck = append(stuck, l.name)
		}
		win.whole.Release(l.counted)
		l.counted = 0
		l.round++
	}
	if len(stuck) > 0 {
		win.showStuck()
	}
	if win.watching = win.inflight.Load() > 0; win.watching {
		time.AfterFunc(stuckAfter/2, win.look)
	}
	win.mu.Unlock()
	if len(stuck) > 0 {
		win.onStuck(stuck)
	}
}

// showStuck keeps the stuck lanes for Stuck; the caller holds mu. It goes through
// all lanes, which is rare.
func (win *Window) showStuck() {
	var all []Stuck
	for _, l := range win.lanes {
		if l.stuck {
			all = append(all, Stuck{Queue: l.name, Since: l.moved})
		}
	}
	if len(all) == 0 {
		win.stuck.Store(nil)
		return
	}
	slices.SortFunc(all, func(a, b Stuck) int { return cmp.Compare(a.Queue, b.Queue) })
	win.stuck.Store(&all)
}

// why explains the end of a wait.
func (win *Window) why(l *lane, err error) error {
	win.mu.Lock()
	defer win.mu.Unlock()
	if !l.stuck {
		return err
	}
	return &StuckError{Stuck{l.name, l.moved}, err}
}

// refusedFor is for how long a refusal of access must last before it is
// believed: a broker that is starting or stopping refuses, too, while it does not
// know its users.
const refusedFor = time.Second

// refused records that the broker has refused a message of the way, and reports whether
// that has stood for long enough to be believed.
func (win *Window) refused(w *way, err error) (stands bool) {
	win.mu.Lock()
	defer win.mu.Unlock()
	now := time.Now()
	if w.refusal.err == nil {
		w.refusal.since = now
	}
	w.refusal.err, w.refusal.last = err, now
	w.proven = false
	return now.Sub(w.refusal.since) >= refusedFor
}
