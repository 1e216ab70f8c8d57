package declare

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// destinations remembers which destinations exist and are bound on the current
// connection. The mandatory flag tells only about a message's first hop, so the
// last one is looked after here, before the first message is sent that way.
//
// A destination is declared by one try at a time, which does not end with those
// who wait for it, and apart from all other destinations: one that cannot be used
// is nobody else's trouble.
type destinations struct {
	c *Declarer

	mu       sync.Mutex
	epoch    uint64 // raised when everything is to be looked at again
	known    map[destKey]*destination
	sweepAt  int                   // the size of known at which to look for what can be forgotten
	creating map[string]wait.Mutex // by queue
	routes   map[string]bool       // route queues that this client made
}

type destKey struct{ queue, exchange, key string }

type destination struct {
	mu     sync.Mutex
	ok     stamp     // where it was declared last
	at     time.Time // when it was
	try    *try      // under way; nil for none
	failed failure   // of the last try; its err is nil after a success
}

// stamp identifies the session for which a destination was declared.
type stamp struct{ gen, epoch uint64 } // sessions count from 1

// failure is what is left of a try that failed.
type failure struct {
	err     error
	until   time.Time // the error stands for that long
	count   int       // of failed tries in a row
	ends    int       // of those in a row that ended the connection
	alone   bool      // the next try gets a connection of its own
	refused bool      // access was refused, and that stood
}

type try struct {
	stamp stamp // zero: for a consumer
	done  chan struct{}
	err   error // after done
}

const (
	// tryTimeout bounds one try. Its connection is given up then.
	tryTimeout = 10 * time.Second
	// errorStands is how long the error of a try that failed is everybody's answer.
	errorStands = time.Second
	// firstErrorStands is that of an error that may pass; it doubles with each.
	firstErrorStands = 50 * time.Millisecond
	// maxEnds is how often a destination may be tried again after its declaration
	// ended the connection.
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

// minSweep is the number of destinations below which none is forgotten.
const minSweep = 1000

// sweep forgets destinations that could not be used, when there are many.
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

// Ensure declares and binds a destination on first use in a session. An error that wraps
// topology.ErrDestination is final. Any other may pass: it comes at once when a try has
// just failed, and is worth another call after a pause.
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

// Consume declares and binds a queue for a consumer, whatever is known of it.
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

// start begins a try; the caller holds d.mu.
func (ds *destinations) start(d *destination, sess *Session, dest topology.Destination, s stamp) *try {
	t := &try{stamp: s, done: make(chan struct{})}
	before := d.failed
	d.try = t
	// A consumer publishes nothing, and what is looked at again was bound.
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
	case t.stamp == stamp{}: // a consumer has its own dead-letter queue, and its own pauses
	case err == nil:
		d.ok, d.at, d.failed = t.stamp, time.Now(), failure{}
	case rechecked && saysNothing(err): // nothing is known that was not known before
		d.at = time.Now()
	default:
		d.ok, d.failed = stamp{}, now
		level := zap.DebugLevel // those who send have the error
		if rechecked {
			level = zap.WarnLevel
		}
		ds.c.log.Log(level, "destination cannot be used", zap.String("destination", dest.String()), zap.Error(now.err))
	}
}

// addRoute counts a route queue that this client is about to make. It reports
// false when there are too many.
func (ds *destinations) addRoute(queue string) bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if !ds.routes[queue] && len(ds.routes) >= ds.c.cfg.MaxRouteQueues {
		return false
	}
	ds.routes[queue] = true
	return true
}
