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

// Window limits the number of unconfirmed messages on one connection. The messages for one queue form its lane, which
// may use at most half of the total, so that a queue that stops confirming does not block the others. When a queue has
// confirmed nothing for stuckAfter, its messages no longer count towards the total. Until it confirms again, one
// message may be published to it in each interval of stuckAfter.
//
// The window also records on which routes the broker has accepted or refused messages.
type Window struct {
	whole   *semaphore.Weighted
	perLane int64
	onStuck func(lanes []string) // called with the lanes that have become stuck

	mu       sync.Mutex
	lanes    map[laneKey]*lane
	routes   map[Route]*route
	watching bool          // whether a call of win.look is scheduled
	moved    chan struct{} // closed and replaced when a message that waits in Enter may be able to proceed

	// Written with mu held, and read without it.
	inflight atomic.Int64
	stuck    atomic.Pointer[[]Stuck] // nil if none
}

// laneKey identifies the queue that a message enters. If the strategy does not name the queue, each route has its own
// lane.
type laneKey struct {
	queue string
	route Route
}

// Route identifies the exchange through which messages for one destination are published.
type Route struct {
	Exchange string    // the exchange to which they are published
	To       [3]string // identifies the destination
}

// Stuck is a queue that has stopped confirming.
type Stuck struct {
	Queue string
	Since time.Time // time of the last answer, or of the first message that waits for one
}

// StuckError is returned when a message could not enter a queue before its context ended.
type StuckError struct {
	Stuck

	Err error // the context's error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("queue %s has stopped confirming messages: %v", e.Queue, e.Err)
}

// Unwrap returns the context's error.
func (e *StuckError) Unwrap() error { return e.Err }

// lane is the state of one queue. Window.mu guards all fields except budget.
type lane struct {
	name     string
	budget   *semaphore.Weighted
	inflight int
	counted  int64     // how much of the window the lane occupies
	round    int       // number of times that counted was reset
	moved    time.Time // time of the last answer, or of the first publish of the unconfirmed messages
	stuck    bool
	next     time.Time // when a stuck lane may publish its next message
	probed   bool      // whether a message that tests an unproven route into the queue is unconfirmed
}

// route records the broker's answers about a Route on this connection. Window.mu guards it.
type route struct {
	proven  bool // a message was confirmed
	trial   int  // unconfirmed messages on the trial channel
	round   int  // number of times that trial was reset
	refusal standing
}

// standing describes the broker's refusal of messages on a route, and how long it has lasted.
type standing struct {
	err         error
	since, last time.Time
}

// windowBytes is the body size up to which a message counts as one.
const windowBytes = 16 << 10

// stuckAfter is how long a queue may go without a confirm before it counts as stuck.
const stuckAfter = time.Second

// maxRoutes is the number of routes or lanes above which idle ones are removed.
const maxRoutes = 1 << 13

func newWindow(maxInFlight int, onStuck func(lanes []string)) *Window {
	whole := int64(maxInFlight) * windowBytes
	return &Window{
		whole: semaphore.NewWeighted(whole), perLane: max(whole/2, windowBytes), onStuck: onStuck,
		lanes: map[laneKey]*lane{}, routes: map[Route]*route{}, moved: make(chan struct{}),
	}
}

// InFlight returns how many messages are unconfirmed. It does not lock.
func (win *Window) InFlight() int { return int(win.inflight.Load()) }

// Stuck returns the queues that have stopped confirming, sorted by name. It does not lock.
func (win *Window) Stuck() []Stuck {
	if stuck := win.stuck.Load(); stuck != nil {
		return slices.Clone(*stuck)
	}
	return nil
}

// Share is one message's share of its lane and of the window. It is released with the outcome of the publish, or by
// GiveUp.
type Share struct {
	route  *route
	lane   *lane
	cost   int64
	round  int
	proven bool // whether the route was proven when the share was given
	trial  int  // the route's round when the share was given
	probe  bool // the message gets a channel to itself, because the trial channel may be blocked
}

// Cost returns how much of the window a message occupies.
func (win *Window) Cost(body []byte) int64 {
	return min(max(int64(len(body)), windowBytes), win.perLane)
}

// Entry holds what a message needs to enter the window: its route, its lane, and the broker's last answers on that
// route.
type Entry struct {
	route   *route
	lane    *lane
	Suspect bool  // the broker refused the last message of this route
	Refused error // the reason, if refusals have lasted for refusedFor and the last one is recent; nil otherwise
}

// Find returns the entry for a message on a route into a queue, and creates its lane and its route's state if
// necessary. If the queue's name is empty, the lane is named after the destination.
func (win *Window) Find(wk Route, queue string, dest func() string) Entry {
	lk := laneKey{queue: queue}
	if queue == "" {
		lk.route = wk
	}
	win.mu.Lock()
	defer win.mu.Unlock()
	w, l := win.routes[wk], win.lanes[lk]
	if w == nil || l == nil {
		win.forgetIdle()
	}
	if w == nil {
		w = &route{}
		win.routes[wk] = w
	}
	if l == nil {
		l = &lane{name: queue, budget: semaphore.NewWeighted(win.perLane)}
		if l.name == "" {
			l.name = dest()
		}
		win.lanes[lk] = l
	}
	e := Entry{route: w, lane: l}
	if r := w.refusal; r.err != nil {
		e.Suspect = true
		if r.last.Sub(r.since) >= refusedFor && time.Since(r.last) < refusedFor {
			e.Refused = r.err
		}
	}
	return e
}

// forgetIdle removes idle routes and lanes if there are very many. Their state is determined again when they are used.
func (win *Window) forgetIdle() {
	if len(win.routes) < maxRoutes && len(win.lanes) < maxRoutes {
		return
	}
	for k, w := range win.routes {
		if w.trial == 0 && w.refusal.err == nil {
			delete(win.routes, k)
		}
	}
	for k, l := range win.lanes {
		if l.inflight == 0 {
			delete(win.lanes, k)
		}
	}
}

// TryEnter returns a share if one is available without waiting.
func (win *Window) TryEnter(e Entry, cost int64) (Share, bool) {
	w, l := e.route, e.lane
	if !l.budget.TryAcquire(cost) {
		return Share{}, false
	}
	if open, _, _ := win.gate(w, l); !open || !win.whole.TryAcquire(cost) {
		l.budget.Release(cost)
		return Share{}, false
	}
	return win.enterNow(w, l, cost), true
}

// Enter waits for a share. Its error is the context's, or a *StuckError if the reason is a queue that has stopped
// confirming.
func (win *Window) Enter(ctx context.Context, e Entry, cost int64) (Share, error) {
	w, l := e.route, e.lane
	if err := l.budget.Acquire(ctx, cost); err != nil {
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
			l.budget.Release(cost)
			return Share{}, win.why(l, ctx.Err())
		}
		t.Stop()
	}
	if err := win.whole.Acquire(ctx, cost); err != nil {
		l.budget.Release(cost)
		return Share{}, win.why(l, err)
	}
	return win.enterNow(w, l, cost), nil
}

// gate reports whether a message may proceed now and, if not, what to wait for. If a message may proceed into a stuck
// lane, the next one has to wait for stuckAfter.
func (win *Window) gate(w *route, l *lane) (open bool, moved <-chan struct{}, wait time.Duration) {
	win.mu.Lock()
	defer win.mu.Unlock()
	switch {
	case l.stuck && !w.proven:
		if l.probed {
			return false, win.moved, stuckAfter
		}
	case w.proven && w.trial > 0:
		// The route moves to the shared channel when all messages on the trial channel are confirmed. If both channels
		// were used simultaneously, its messages could overtake each other.
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

func (win *Window) enterNow(w *route, l *lane, cost int64) Share {
	win.mu.Lock()
	defer win.mu.Unlock()
	probe := l.stuck && !w.proven
	switch {
	case probe: // may overtake the messages on the trial channel
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
	return Share{route: w, lane: l, cost: cost, round: l.round, proven: w.proven, trial: w.round, probe: probe}
}

// answer is the broker's answer to a published message.
type answer int

const (
	silence answer = iota // no answer
	taken
	notTaken
)

// GiveUp releases the share of a message that was not written.
func (win *Window) GiveUp(s Share) { win.leave(s, silence) }

func (win *Window) leave(s Share, a answer) {
	l, w := s.lane, s.route
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
	unstuck := l.stuck && (a != silence || l.inflight == 0) // a message without an answer says nothing about the queue
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

	l.budget.Release(s.cost)
	if counted {
		win.whole.Release(s.cost)
	}
}

// look marks the lanes that have become stuck, passes their names to onStuck, and stops counting the messages of stuck
// lanes towards the window. It reschedules itself while any messages are unconfirmed.
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

// showStuck stores the stuck lanes for Stuck. The caller holds mu. It iterates over all lanes, but is called rarely.
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

// why returns err, the error with which a wait ended, wrapped in a *StuckError if the lane is stuck.
func (win *Window) why(l *lane, err error) error {
	win.mu.Lock()
	defer win.mu.Unlock()
	if !l.stuck {
		return err
	}
	return &StuckError{Stuck{l.name, l.moved}, err}
}

// refusedFor is how long a refusal of access must last before it is treated as permanent. A broker that is starting or
// stopping also refuses access, because it does not know its users.
const refusedFor = time.Second

// refused records that the broker refused a message on this route, and reports whether refusals have lasted long enough
// (refusedFor) to be treated as permanent.
func (win *Window) refused(w *route, err error) (stands bool) {
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
