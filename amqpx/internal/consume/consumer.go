package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/outage"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sparse"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Settings configures one consumer. The caller has set all fields to valid values.
type Settings struct {
	Queue      string
	DeadLetter string // the queue for dead letters
	Retry      topology.Retry

	Concurrency int // number of handlers that run at a time
	Prefetch    int
	HeldBytes   int // size in bytes up to which the prefetch grows with the held messages
	Drain       time.Duration

	// Handling is called immediately before a delivery is handled.
	Handling func(d *Delivery) Handling
}

// Consumer consumes one queue. It outlives connections and keeps its slots across them, so the concurrency also counts
// the handlers that are still running for a lost connection.
type Consumer struct {
	all *Consumers
	set Settings

	slots    chan struct{} // one element for each running handler
	ids      busyIDs       // messages that are being handled
	counts   counts        // delivery counts that are implausibly large
	overruns overruns
	handlers context.Context // parent context of the handlers; ends with the drain time
	ending   context.Context // ends when the consumer begins to shut down
	work     sync.WaitGroup  // messages being handled or settled
	leaving  sync.WaitGroup  // subscriptions that are being closed in the background
	running  atomic.Int64    // number of running handlers
	blocked  blocked         // the running handlers that wait for their database

	classic   atomic.Bool  // the queue is a classic queue; false if the type is unknown
	abandoned atomic.Bool  // Close no longer waits for the running handlers
	settling  atomic.Int64 // messages whose retry, dead letter, copy or acknowledgement is in progress
	log       *zap.Logger
	restarts  sparse.Log // rate-limited log messages
	stuck     sparse.Log
	failures  sparse.Log
	outages   sparse.Log

	began   bool // consuming has succeeded at least once
	asked   bool // the queue's type and delivery limit are being checked or have been, because messages are held
	barred  bool // the broker has permanently refused the consumer
	refused refusals
	own     atomic.Pointer[wire.Link[*Session]] // nil while the shared connection is used

	// The following fields are read by stats. Times and durations are in nanoseconds.
	state           atomic.Pointer[consumerState]
	waiting, oldest atomic.Int64
	begunAt         atomic.Int64
	lateness        atomic.Int64
	held, prefetch  atomic.Int64
	returned        atomic.Uint64
	handled, failed atomic.Uint64
}

// New returns a consumer, which Run starts.
func (a *Consumers) New(set Settings) *Consumer {
	k := &Consumer{
		all: a, set: set, slots: make(chan struct{}, set.Concurrency), ids: newBusyIDs(),
		log: a.cfg.Log.Named("consume").With(zap.String("queue", set.Queue)),
	}
	k.prefetch.Store(int64(set.Prefetch))
	return k
}

// queue returns the consumer's queue as a destination.
func (k *Consumer) queue() topology.Destination { return topology.Destination{Queue: k.set.Queue} }

// Run consumes until ctx ends or the client is closed (Config.Stop), and then waits for the running handlers. Its error
// wraps ErrDrainTimeout if some of them are still running after the drain time. It also ends, with an error, if the
// consumer cannot start.
func (k *Consumer) Run(ctx context.Context) error {
	if err := k.all.begin(k); err != nil {
		return err
	}
	defer k.all.end(k)
	return k.run(ctx)
}

func (k *Consumer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.all.cfg.Stop, cancel)()
	// Handlers get the values of the caller's context, but not its cancellation.
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	k.handlers, k.ending = outage.WithConsumer(handlers, k), ctx

	for attempt := 1; ; attempt++ {
		k.awaitResume(ctx)
		sub, err := k.serve(ctx)
		if ctx.Err() == nil && errors.Is(err, errPaused) {
			k.stepAside(sub)
			attempt = 0
			continue
		}
		if ctx.Err() != nil {
			k.become(Ending, nil)
			returned := k.beginHandBack(sub)
			err := k.awaitDrain(endHandlers)
			k.unsubscribe(sub, returned) // only after the handlers have returned, because they acknowledge on its channel
			return err
		}
		k.down(err)
		k.leave(sub)
		if !k.began && (k.barred || k.refused.stand(err, k.all.cfg.Wire.Permanent)) {
			return errors.Join(err, k.awaitDrain(endHandlers))
		}
		if sub != nil && time.Since(sub.began) > k.all.cfg.Wire.ReconnectMax {
			attempt = 1
		}
		k.restarts.Warn(k.log, sparse.Kind(err), "the consumer stopped; restarting it", zap.Error(err))
		// Ignore the error: if ctx has ended, the next call to serve returns.
		_ = wait.For(ctx, wait.Backoff(k.all.cfg.Wire.ReconnectMin, k.all.cfg.Wire.ReconnectMax, attempt))
	}
}

// serve consumes on one connection until the subscription or ctx ends. The returned subscription stays open for
// acknowledgements. It is nil if none was started.
func (k *Consumer) serve(ctx context.Context) (*subscription, error) {
	sess, err := k.connection(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := k.subscribe(ctx, sess)
	if err != nil {
		return nil, err
	}
	k.began = true
	return sub, k.intake(ctx, sub)
}

// leave closes a subscription whose intake has stopped by itself. If the broker has cancelled its consumer, other
// deliveries on its channel may still be acknowledged or returned. So the channel stays open until the handlers have
// returned, or the broker closes it because another handler exceeds the consumer timeout.
func (k *Consumer) leave(s *subscription) {
	if s == nil || s.lost() || !s.cancelled.Load() {
		k.close(k.all.cfg.Forced, s)
		return
	}
	s.renewals.stop() // the broker may have requeued the received messages, so their copies would be duplicates
	k.stepAside(s)
}

// stepAside closes a subscription in the background. It cancels the consumers immediately, but keeps the channel open
// until the handlers of its messages have returned.
func (k *Consumer) stepAside(s *subscription) {
	k.leaving.Go(func() {
		<-k.beginHandBack(s)
		s.work.Wait()
		k.close(k.all.cfg.Forced, s)
	})
}

// unsubscribe closes the subscription after the messages that were not handled have been returned to the queue. It
// waits for the broker for at most wire.CloseWait, or for the drain time if that is shorter, as in a process that must
// end quickly. It stops waiting when Close's context ends.
func (k *Consumer) unsubscribe(s *subscription, returned <-chan struct{}) {
	ctx, cancel := context.WithTimeout(k.all.cfg.Forced, min(wire.CloseWait, k.set.Drain))
	defer cancel()
	left := make(chan struct{})
	go func() { k.leaving.Wait(); close(left) }()
	for _, done := range []<-chan struct{}{returned, left} {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	k.close(ctx, s)
}

// down records why the consumer is not consuming.
func (k *Consumer) down(err error) {
	if k.began {
		k.become(Down, err)
		return
	}
	k.become(Starting, err)
}

// awaitDrain waits for the running handlers. When the drain time or Close's context has ended, it cancels their context
// and gives them two more seconds.
func (k *Consumer) awaitDrain(cancel func()) error {
	const notice = 2 * time.Second
	idle := make(chan struct{})
	go func() { k.work.Wait(); close(idle) }()
	bound := k.set.Drain.String()
	select {
	case <-idle:
		return nil
	case <-k.all.cfg.Forced.Done():
		bound = "the end of Close's context"
	case <-time.After(k.set.Drain):
	}
	cancel()
	select {
	case <-idle:
		return nil
	case <-time.After(notice):
		if k.all.cfg.Forced.Err() != nil {
			k.abandoned.Store(true)
			k.all.abandoned.Add(k.running.Load())
		}
		return fmt.Errorf("%w: %[4]d handlers of queue %[2]s were still running after %[3]s; their messages will be delivered again", ErrDrainTimeout, k.set.Queue, bound, k.running.Load())
	}
}

// refusals distinguishes a permanent refusal by the broker from a temporary one.
type refusals struct{ since time.Time } // time of the first refusal in a row; zero if the last attempt was not refused

// stand records the result of an attempt and reports whether the broker has refused for long enough that the refusal is
// treated as permanent.
func (r *refusals) stand(err error, permanent func(error) bool) bool {
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
