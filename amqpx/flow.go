package amqpx

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// flow bounds what is unconfirmed on one connection: Config.MaxInFlight in all,
// and half of it in one lane, so that a queue which stops confirming leaves room
// for the others. What such a queue still holds after stuckAfter no longer counts
// towards the whole, and until it confirms again it gets one message each
// stuckAfter.
//
// It also knows the ways, pairs of an exchange and a destination, on which the
// broker has taken a message, or refused one.
type flow struct {
	window  *semaphore.Weighted
	perLane int64
	onStuck func(lanes []string) // is told of those that have become stuck

	mu       sync.Mutex
	lanes    map[laneKey]*lane
	ways     map[wayKey]*way
	watching bool          // look will run
	moved    chan struct{} // closed, and replaced, when somebody at the gate may go on

	// Written with mu held, and read without.
	inflight atomic.Int64
	stuck    atomic.Pointer[[]StuckQueue] // nil for none
}

// laneKey names the queue that a message enters. If the strategy does not name
// the queue, each way has its own lane.
type laneKey struct {
	queue string
	way   wayKey
}

type wayKey struct{ entry, queue, exchange, key string }

// lane is what goes into one queue. flow.mu guards all but room.
type lane struct {
	name     string
	room     *semaphore.Weighted
	inflight int
	counted  int64     // what it holds of the window
	round    int       // counts how often that was written off
	moved    time.Time // the last answer, or the first publish of those in flight
	stuck    bool
	next     time.Time // when a stuck lane gets its next message
}

// way is where messages of one destination enter, with what the broker has said
// of it on this connection. flow.mu guards it.
type way struct {
	proven  bool // a message was confirmed
	trial   int  // unconfirmed messages on the channel for what is not proven
	refusal standing
}

// standing is the broker's standing refusal to take messages of a way.
type standing struct {
	err         error
	since, last time.Time
}

// windowBytes is the body size up to which a message counts as one in
// Config.MaxInFlight.
const windowBytes = 16 << 10

// stuckAfter is how long a queue may confirm nothing before it counts as stuck.
const stuckAfter = time.Second

// maxWays bounds what a flow remembers of idle ways and lanes.
const maxWays = 1 << 13

func newFlow(maxInFlight int, onStuck func(lanes []string)) *flow {
	window := int64(maxInFlight) * windowBytes
	return &flow{
		window: semaphore.NewWeighted(window), perLane: max(window/2, windowBytes), onStuck: onStuck,
		lanes: map[laneKey]*lane{}, ways: map[wayKey]*way{}, moved: make(chan struct{}),
	}
}

// share is the place of one message in its lane and in the window. It is given
// back by leave.
type share struct {
	way    *way
	lane   *lane
	cost   int64
	round  int
	proven bool // when it was given
}

func (f *flow) cost(body []byte) int64 {
	return min(max(int64(len(body)), windowBytes), f.perLane)
}

// entry is where a message may enter, as far as the broker has told.
type entry struct {
	way     *way
	lane    *lane
	suspect bool  // the broker has refused the last message of the way
	refused error // the reason, while it is recent enough not to ask again
}

// find gives the way and the lane of a route, made on first use.
func (f *flow) find(r *topology.Route, dest topology.Destination) entry {
	wk := wayKey{r.Exchange, dest.Queue, dest.Exchange, dest.RoutingKey}
	lk := laneKey{queue: r.Queue}
	if r.Queue == "" {
		lk.way = wk
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w, l := f.ways[wk], f.lanes[lk]
	if w == nil || l == nil {
		f.forgetIdle()
	}
	if w == nil {
		w = &way{}
		f.ways[wk] = w
	}
	if l == nil {
		l = &lane{name: r.Queue, room: semaphore.NewWeighted(f.perLane)}
		if l.name == "" {
			l.name = dest.String()
		}
		f.lanes[lk] = l
	}
	e := entry{way: w, lane: l}
	if r := w.refusal; r.err != nil {
		e.suspect = true
		if r.last.Sub(r.since) >= refusedFor && time.Since(r.last) < refusedFor {
			e.refused = r.err
		}
	}
	return e
}

// forgetIdle makes room where there are very many ways. What is forgotten is
// found out again.
func (f *flow) forgetIdle() {
	if len(f.ways) < maxWays && len(f.lanes) < maxWays {
		return
	}
	for k, w := range f.ways {
		if w.trial == 0 && w.refusal.err == nil {
			delete(f.ways, k)
		}
	}
	for k, l := range f.lanes {
		if l.inflight == 0 {
			delete(f.lanes, k)
		}
	}
}

// tryEnter gives a share if there is one without waiting.
func (f *flow) tryEnter(e entry, cost int64) (share, bool) {
	w, l := e.way, e.lane
	if !l.room.TryAcquire(cost) {
		return share{}, false
	}
	if open, _, _ := f.gate(w, l); !open || !f.window.TryAcquire(cost) {
		l.room.Release(cost)
		return share{}, false
	}
	return f.enterNow(w, l, cost), true
}

// enter waits for a share. Its error wraps the context's, and names the queue
// that does not confirm if that is the reason.
func (f *flow) enter(ctx context.Context, e entry, cost int64) (share, error) {
	w, l := e.way, e.lane
	if err := l.room.Acquire(ctx, cost); err != nil {
		return share{}, f.why(l, err)
	}
	for {
		open, moved, wait := f.gate(w, l)
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
			return share{}, f.why(l, ctx.Err())
		}
		t.Stop()
	}
	if err := f.window.Acquire(ctx, cost); err != nil {
		l.room.Release(cost)
		return share{}, f.why(l, err)
	}
	return f.enterNow(w, l, cost), nil
}

// gate tells whether a message may go on now, and else what to wait for.
func (f *flow) gate(w *way, l *lane) (open bool, moved <-chan struct{}, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case w.proven && w.trial > 0:
		// It moves to the shared channel when the trial channel has all its confirms:
		// on two channels at once its messages could overtake each other.
		return false, f.moved, stuckAfter
	case !l.stuck:
		return true, nil, 0
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, f.moved, wait
	}
	l.next = now.Add(stuckAfter)
	return true, nil, 0
}

func (f *flow) enterNow(w *way, l *lane, cost int64) share {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !w.proven {
		w.trial++
	}
	if l.inflight == 0 {
		l.moved = time.Now()
	}
	l.inflight++
	l.counted += cost
	f.inflight.Add(1)
	if !f.watching {
		f.watching = true
		time.AfterFunc(stuckAfter, f.look)
	}
	return share{way: w, lane: l, cost: cost, round: l.round, proven: w.proven}
}

// leave returns a share. answered: the broker has answered about the message;
// taken: it has accepted it.
func (f *flow) leave(s share, answered, taken bool) {
	l, w := s.lane, s.way
	f.mu.Lock()
	f.inflight.Add(-1)
	l.inflight--
	counted := s.round == l.round
	if counted {
		l.counted -= s.cost
	}
	if answered {
		l.moved = time.Now()
	}
	unstuck := answered && l.stuck
	if unstuck {
		l.stuck = false
		f.showStuck()
	}
	if !s.proven {
		w.trial--
	}
	if taken && (!w.proven || w.refusal.err != nil) {
		w.proven, w.refusal = true, standing{}
	}
	if unstuck || !s.proven && w.trial == 0 {
		close(f.moved)
		f.moved = make(chan struct{})
	}
	f.mu.Unlock()

	l.room.Release(s.cost)
	if counted {
		f.window.Release(s.cost)
	}
}

// look writes off what stuck lanes hold of the window. It runs as long as
// anything is in flight.
func (f *flow) look() {
	now := time.Now()
	var stuck []string
	f.mu.Lock()
	for _, l := range f.lanes {
		if l.inflight == 0 || now.Sub(l.moved) < stuckAfter {
			continue
		}
		if !l.stuck {
			l.stuck, l.next = true, now.Add(stuckAfter)
			stuck = append(stuck, l.name)
		}
		f.window.Release(l.counted)
		l.counted = 0
		l.round++
	}
	if len(stuck) > 0 {
		f.showStuck()
	}
	if f.watching = f.inflight.Load() > 0; f.watching {
		time.AfterFunc(stuckAfter/2, f.look)
	}
	f.mu.Unlock()
	if len(stuck) > 0 {
		f.onStuck(stuck)
	}
}

// showStuck keeps the stuck lanes for Stats; the caller holds mu. It goes through
// all lanes, which is rare.
func (f *flow) showStuck() {
	var all []StuckQueue
	for _, l := range f.lanes {
		if l.stuck {
			all = append(all, StuckQueue{Queue: l.name, Since: l.moved})
		}
	}
	if len(all) == 0 {
		f.stuck.Store(nil)
		return
	}
	slices.SortFunc(all, func(a, b StuckQueue) int { return cmp.Compare(a.Queue, b.Queue) })
	f.stuck.Store(&all)
}

// why explains the end of a wait.
func (f *flow) why(l *lane, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !l.stuck {
		return err
	}
	return &StuckError{Queue: l.name, Since: l.moved, Err: err}
}

// refusedFor is for how long a refusal of access must last before it is
// believed: a broker that is starting or stopping refuses, too, while it does not
// know its users.
const refusedFor = time.Second

// refused notes that the broker has refused a message of the way, and tells
// whether that has stood for long enough to be believed.
func (f *flow) refused(w *way, err error) (stands bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if w.refusal.err == nil {
		w.refusal.since = now
	}
	w.refusal.err, w.refusal.last = err, now
	w.proven = false
	return now.Sub(w.refusal.since) >= refusedFor
}
