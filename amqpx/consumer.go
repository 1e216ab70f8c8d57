package amqpx

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sparse"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// consumer is one call of Consume. It outlives connections: its slots are the
// same for all of them, so that WithConcurrency bounds the handlers also while those of
// a lost connection still run.
type consumer struct {
	c       *Client
	queue   string
	handler Handler // within its middleware
	retry   topology.Retry
	backoff func(d *Delivery, err error) time.Duration
	policy  func(d *Delivery, err error) error // nil: errors stay as they are
	dead    string

	concurrency int
	prefetch    int
	heldBytes   int
	drain       time.Duration
	middleware  []Middleware
	refusal     error // of an option's argument

	slots    chan struct{} // one element for each handler that runs
	ids      busyIDs       // of the messages that are being handled
	counts   counts        // of deliveries that are hard to believe
	overruns overruns
	handlers context.Context // of running handlers; ends when the drain time is over
	ending   context.Context // ends when the consumer begins to
	work     sync.WaitGroup  // messages that were begun
	leaving  sync.WaitGroup  // subscriptions that step aside
	running  atomic.Int64    // handlers

	abandoned atomic.Bool  // those that still run are not waited for
	settling  atomic.Int64 // messages whose handler has ended
	log       *zap.Logger
	restarts  sparse.Log // log lines
	stuck     sparse.Log
	failures  sparse.Log

	began   bool // the broker has let it consume once
	barred  bool // the connection is refused, and that stands
	refused refusals
	own     atomic.Pointer[wire.Link[*session]] // nil while the client's consuming connection is used

	// For stats; instants and durations in nanoseconds.
	state           atomic.Pointer[consumerState]
	waiting, oldest atomic.Int64
	begunAt         atomic.Int64
	lateness        atomic.Int64
	held, places    atomic.Int64
	returned        atomic.Uint64
	handled, failed atomic.Uint64
}

// consumerState is what a consumer is doing, since when and why.
type consumerState struct {
	state ConsumerState
	since time.Time
	err   error
}

// become records what the consumer is doing now. The instant of a state that goes on
// stays.
func (k *consumer) become(state ConsumerState, err error) {
	was := k.state.Load()
	if was != nil && was.state == state && was.err == nil && err == nil {
		return
	}
	next := &consumerState{state, time.Now(), err}
	if was != nil && was.state == state {
		next.since = was.since
	}
	k.state.Store(next)
}

// look records what waits for a handler; only the intake calls it.
func (k *consumer) look(h *holding, places int) {
	k.waiting.Store(int64(h.count - len(h.early)))
	k.held.Store(int64(len(h.early)))
	k.places.Store(int64(places))
	oldest := int64(0)
	if at := h.oldest(); !at.IsZero() && k.state.Load().state != ConsumerPaused {
		oldest = at.UnixNano()
	}
	k.oldest.Store(oldest)
}

func (k *consumer) stats() ConsumerStats {
	at := k.state.Load()
	s := ConsumerStats{
		Queue: k.queue, State: at.state, Since: at.since, Err: at.err,
		Running: int(k.running.Load()), Concurrency: k.concurrency,
		Waiting: int(k.waiting.Load()), Settling: int(k.settling.Load()), Prefetch: int(k.places.Load()),
		Held: int(k.held.Load()), Returned: k.returned.Load(),
		Oldest: instantOf(k.oldest.Load()), Begun: instantOf(k.begunAt.Load()), Lateness: time.Duration(k.lateness.Load()),
		Handled: k.handled.Load(), Failed: k.failed.Load(),
	}
	if at.err != nil {
		s.Reason = at.err.Error()
	}
	if own := k.own.Load(); own != nil {
		connection := connectionStats(own.Status())
		s.Connection = &connection
	}
	return s
}

// instantOf is an instant that was kept in nanoseconds; 0 is none.
func instantOf(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}

// refusals distinguishes a refusal that stands from one that passes.
type refusals struct{ since time.Time } // since when every attempt was refused; zero: none

// stand records the outcome of one more attempt, and reports whether refusals stand.
func (r *refusals) stand(err error) bool {
	switch {
	case err == nil || !permanent(err) && !errors.Is(err, topology.ErrDestination):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	default:
		return time.Since(r.since) > wire.RefusalStands
	}
	return false
}
