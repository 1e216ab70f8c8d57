package declare

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// destinations records which destinations exist and are bound in the current session. The mandatory flag covers only
// the first hop of a message, so the last hop is checked here before the first message is sent to a destination.
//
// For each destination there is at most one attempt at a time. The attempt continues even if its callers stop waiting.
// Attempts for different destinations are independent, so a destination that cannot be used does not affect the others.
type destinations struct {
	c *Declarer

	mu       sync.Mutex
	epoch    uint64 // incremented when all destinations have to be checked again
	known    map[destKey]*destination
	sweepAt  int                   // the number of entries in known at which unusable destinations are removed
	creating map[string]wait.Mutex // by queue name
	routes   map[string]bool       // route queues that this client has created
}

type destKey struct{ queue, exchange, key string }

type destination struct {
	mu     sync.Mutex
	ok     stamp     // the session and epoch for which it was last declared
	at     time.Time // when it was last declared
	try    *try      // the attempt that is running; nil if none
	failed failure   // the result of the last attempt; its err is nil after a success
}

// stamp identifies the session and epoch for which a destination was declared.
type stamp struct{ gen, epoch uint64 } // sessions count from 1, so a zero stamp means none

// failure records the latest error of declaring a destination, how long callers get it without another attempt, and the
// number of consecutive failed attempts.
type failure struct {
	err     error
	until   time.Time // callers get the error until then
	count   int       // number of consecutive failed attempts
	ends    int       // number of consecutive failed attempts after which the broker closed the connection
	alone   bool      // the next attempt gets a separate connection
	refused bool      // access was refused for longer than accessStands
}

// try is an attempt to declare a destination.
type try struct {
	stamp stamp // zero for a consumer
	done  chan struct{}
	err   error // set before done is closed
}

const (
	// tryTimeout limits one attempt. After that, the attempt's connection is no longer used.
	tryTimeout = 10 * time.Second
	// errorStands is how long the error of a failed attempt is returned to all callers.
	errorStands = time.Second
	// firstErrorStands is the corresponding initial duration for an error that may be temporary. It doubles with each
	// failed attempt, up to errorStands.
	firstErrorStands = 50 * time.Millisecond
	// maxEnds is the number of times that a destination is tried again after its declaration has made the broker close
	// the connection.
	maxEnds = 2
)

func keyOf(d topology.Destination) destKey { return destKey{d.Queue, d.Exchange, d.RoutingKey} }

func (ds *destinations) entry(sess *Session, k destKey) (*destination, stamp) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	d := ds.known[k]
	if d == nil {
		ds.sweep()
		d = &destination{}
		ds.known[k] = d
	}
	return d, stamp{sess.Gen, ds.epoch}
}

// minSweep is the number of destinations below which none are removed from the record.
const minSweep = 1000

// sweep removes unusable destinations from the record if it has become large.
func (ds *destinations) sweep() {
	if len(ds.known) < ds.sweepAt {
		return
	}
	for k, d := range ds.known {
		d.mu.Lock()
		if d.try == nil && d.failed.err != nil && time.Now().After(d.failed.until) {
			delete(ds.known, k)
		}
		d.mu.Unlock()
	}
	ds.sweepAt = max(minSweep, 2*len(ds.known))
}

// Ensure declares and binds a destination on its first use in a session. Later it only starts another check in the
// background if the last one was longer than Config.Recheck ago. An error that wraps topology.ErrDestination is final.
// Any other error may be temporary: Ensure returns it immediately if an attempt has just failed, and the caller can try
// again after a pause.
func (c *Declarer) Ensure(ctx context.Context, sess *Session, dest topology.Destination) error {
	ds := c.dests
	for {
		d, want := ds.entry(sess, keyOf(dest))
		d.mu.Lock()
		switch {
		case d.ok == want:
			if d.try == nil && time.Since(d.at) > c.cfg.Recheck {
				ds.start(d, sess, dest, want)
			}
			d.mu.Unlock()
			return nil
		case d.try == nil && d.failed.err != nil && time.Now().Before(d.failed.until):
			err := d.failed.err
			d.mu.Unlock()
			return err
		case d.try == nil:
			ds.start(d, sess, dest, want)
		}
		t := d.try
		d.mu.Unlock()
		if err := t.wait(ctx); err != nil {
			return err
		}
		if t.stamp == want {
			return t.err
		}
	}
}

// Consume declares and binds a queue for a consumer, even if the queue is known to exist.
func (c *Declarer) Consume(ctx context.Context, sess *Session, dest topology.Destination) error {
	ds := c.dests
	for {
		d, _ := ds.entry(sess, keyOf(dest))
		d.mu.Lock()
		t, mine := d.try, d.try == nil
		if mine {
			t = ds.start(d, sess, dest, stamp{})
		}
		d.mu.Unlock()
		if err := t.wait(ctx); err != nil {
			return err
		}
		if mine {
			return t.err
		}
	}
}

func (t *try) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start starts an attempt in the background. The caller holds d.mu.
func (ds *destinations) start(d *destination, sess *Session, dest topology.Destination, s stamp) *try {
	t := &try{stamp: s, done: make(chan struct{})}
	before := d.failed
	d.try = t
	// Messages wait only for a sender's first check of a destination. They do not wait for a consumer's check, which
	// has a zero stamp, or for a repeated check of a destination that was bound before.
	l := look{}
	if s != (stamp{}) && s != d.ok {
		l = look{awaited: true, failed: before.count}
	}
	if !ds.c.conns.begin(func(ctx context.Context) { ds.run(ctx, d, t, sess, dest, before, l) }) {
		d.try = nil
		t.err = wire.ErrClosed
		close(t.done)
	}
	return t
}

func (ds *destinations) run(ctx context.Context, d *destination, t *try, sess *Session, dest topology.Destination, before failure, l look) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := ds.c.do(ctx, sess, before.alone, func(conn *amqp.Connection) error {
		return believed(ctx, before.refused, func() error { return ds.c.destination(ctx, conn, dest, l) })
	})
	now := failure{}
	if err != nil {
		now = judge(dest, err, before)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rechecked := d.ok == t.stamp && t.stamp != stamp{}
	t.err, d.try = now.err, nil
	close(t.done)
	switch {
	case t.stamp == stamp{}: // not recorded for senders, because a consumer has its own dead-letter queue and its own back-off
	case err == nil:
		d.ok, d.at, d.failed = t.stamp, time.Now(), failure{}
	case rechecked && saysNothing(err): // the error says nothing about the destination, which is assumed to be still bound
		d.at = time.Now()
	default:
		d.ok, d.failed = stamp{}, now
		level := zap.DebugLevel // the senders get the error
		if rechecked {
			level = zap.WarnLevel
		}
		ds.c.log.Log(level, "could not declare or bind a destination", zap.String("destination", dest.String()), zap.Error(now.err))
	}
}

// addRoute counts a route queue that this client is about to create. It reports false if the limit has been reached.
func (ds *destinations) addRoute(queue string) bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if !ds.routes[queue] && len(ds.routes) >= ds.c.cfg.MaxRouteQueues {
		return false
	}
	ds.routes[queue] = true
	return true
}
