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

// consumer is the state of one call of Consume. It outlives connections and keeps its slots across them, so
// WithConcurrency also counts the handlers that are still running for a lost connection.
type consumer struct {
	c       *Client
	queue   string
	handler Handler // wrapped in the middleware
	retry   topology.Retry
	backoff func(d *Delivery, err error) time.Duration
	policy  func(d *Delivery, err error) error // nil if the consumer has no error policy
	dead    string

	concurrency int
	prefetch    int
	heldBytes   int
	drain       time.Duration
	middleware  []Middleware
	refusal     error // the error about the first invalid option

	slots    chan struct{} // one element for each running handler
	ids      busyIDs       // messages that are being handled
	counts   counts        // delivery counts that are implausibly large
	overruns overruns
	handlers context.Context // parent context of the handlers; ends with the drain time
	ending   context.Context // ends when the consumer begins to shut down
	work     sync.WaitGroup  // messages being handled or settled
	leaving  sync.WaitGroup  // subscriptions that are being ended in the background
	running  atomic.Int64    // number of running handlers

	abandoned atomic.Bool  // Close no longer waits for the running handlers
	settling  atomic.Int64 // messages whose retry, dead letter, copy or acknowledgement is in progress
	log       *zap.Logger
	restarts  sparse.Log // rate-limited log messages
	stuck     sparse.Log
	failures  sparse.Log

	began   bool // consuming has succeeded at least once
	barred  bool // consuming was refused for good
	refused refusals
	own     atomic.Pointer[wire.Link[*session]] // nil while the client's consuming connection is used

	// The following fields are read by stats. Times and durations are in nanoseconds.
	state           atomic.Pointer[consumerState]
	waiting, oldest atomic.Int64
	begunAt         atomic.Int64
	lateness        atomic.Int64
	held, places    atomic.Int64
	returned        atomic.Uint64
	handled, failed atomic.Uint64
}

// consumerState is a consumer's state, when it began and the error that caused it.
type consumerState struct {
	state ConsumerState
	since time.Time
	err   error
}

// become records the consumer's state. If the state is unchanged, the time since when it holds is kept.
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

// look records the numbers of buffered messages for stats. Only the intake calls it.
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

// instantOf converts Unix nanoseconds to a time. 0 becomes the zero time.
func instantOf(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}

// refusals distinguishes a permanent refusal by the broker from a temporary one.
type refusals struct{ since time.Time } // since when every attempt has been refused; zero if the last one was not

// stand records the result of an attempt and reports whether the broker has refused for long enough that the
// refusal counts as permanent.
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
