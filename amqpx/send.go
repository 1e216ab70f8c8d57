package amqpx

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Send publishes one message and returns nil when the broker has confirmed it
// and routed it into a delay queue (or, without a delay, to the destination).
// It retries under the same message id until the context's deadline
// (Config.SendTimeout without one). It is safe for many goroutines, whose
// confirms are pipelined.
//
// Errors: *MessageError, *topology.DelayError, *topology.KeyError and
// *topology.DestinationError for what can never be sent; *SendError otherwise, in which
// errors.Is finds ErrNotSent or ErrOutcomeUnknown and the cause (ErrBlocked,
// ErrNacked, ErrUnroutable, ErrClosed, the context's error).
func (c *Client) Send(ctx context.Context, m Message) error {
	ctx, cancel := c.sendContext(ctx)
	defer cancel()
	if len(c.hooks.send) > 0 {
		return c.sendOne(ctx, m, "")
	}
	p := &prepared{}
	if err := c.prepareAs(p, &m, "", time.Now()); err != nil {
		return err
	}
	return c.deliver(ctx, p)
}

// sendOne sends to the message's destination through the strategy, or straight
// to a queue, and tells the hooks.
func (c *Client) sendOne(ctx context.Context, m Message, direct string) error {
	start := time.Now()
	ctx = c.hooks.sendStart(ctx, &m)
	p, err := c.prepare(&m, direct, start)
	if err != nil {
		c.sendEnd(ctx, m.ID, p, start, err)
		return err
	}
	err = c.deliver(ctx, p)
	c.sendEnd(ctx, p.pub.MessageId, p, start, err)
	return err
}

func (c *Client) sendEnd(ctx context.Context, id string, p *prepared, start time.Time, err error) {
	if len(c.hooks.send) == 0 {
		return
	}
	e := SendEnd{ID: id, Strategy: c.strategy.Name(), Duration: time.Since(start), Err: err}
	if p != nil {
		e.Hops, e.Delay, e.Tries = p.hops, p.delay, p.tries
	}
	c.hooks.sendEnd(ctx, e)
}

// sendContext gives a context without a deadline the client's own.
func (c *Client) sendContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.SendTimeout)
}

// deliver tries until the message is confirmed, the context ends, or the error
// is final.
func (c *Client) deliver(ctx context.Context, p *prepared) error {
	for try := 1; ; try++ {
		sess, err := c.ready(ctx, p)
		if err != nil {
			return c.failed(p, err)
		}
		if err := sess.pub.window.Acquire(ctx, sess.pub.cost(p.pub.Body)); err != nil {
			return c.failed(p, c.deadline(ctx.Err()))
		}
		x, err := c.write(sess, p, time.Now())
		if err == nil {
			err = sess.pub.outcome(ctx, x)
		}
		if err == nil {
			return nil
		}
		if err := c.again(ctx, sess, p, try, err); err != nil {
			return c.failed(p, err)
		}
		if err := c.pause(ctx, try); err != nil {
			return c.failed(p, err)
		}
	}
}

// ready waits for a connection that takes publishes and has the destination.
func (c *Client) ready(ctx context.Context, p *prepared) (*session, error) {
	for {
		sess, err := c.pub.wait(ctx, true)
		if err != nil {
			return nil, err
		}
		if p.direct != "" {
			return sess, nil
		}
		err = c.dests.ensure(ctx, sess, p.dest)
		switch {
		case err == nil:
			return sess, nil
		case ctx.Err() != nil:
			return nil, c.deadline(err)
		case errors.Is(err, topology.ErrDestination), permanent(err):
			return nil, err
		}
		if err := c.pause(ctx, 1); err != nil {
			return nil, err
		}
	}
}

// write publishes with the delay that is left now. The caller holds the window.
func (c *Client) write(sess *session, p *prepared, now time.Time) (publication, error) {
	exchange, key, mandatory, pub := "", p.direct, true, p.pub
	var ofRoute amqp.Table
	if p.direct == "" {
		route, err := c.route(p, now)
		if err != nil {
			sess.pub.window.Release(sess.pub.cost(p.pub.Body))
			return publication{}, err
		}
		exchange, key, mandatory = route.Exchange, route.RoutingKey, route.Mandatory
		p.hops, p.delay = route.Hops, route.Delay
		ofRoute = route.Headers
	}
	pub.Headers = p.headers(ofRoute)
	x, err := sess.pub.publish(exchange, key, mandatory, pub, sess.pub.cost(pub.Body))
	giveBack(pub.Headers)
	if err == nil {
		p.tries++
		p.written = time.Now()
	}
	return x, err
}

// routeSlack is how long after Send began the delay that was asked for still
// stands. Within it a declared delay stays the declared delay, for a strategy
// that knows no other; after it the delay is what remains.
const routeSlack = 5 * time.Millisecond

// route gives what is left of the delay. It aims at the end of the delay that
// was found for start, and not at the due instant before it: else a message that
// took longer to be sent would be rounded differently, and might overtake one
// that was sent before it with the same delay.
func (c *Client) route(p *prepared, now time.Time) (topology.Route, error) {
	if now.Sub(p.start) <= routeSlack {
		return p.first, nil
	}
	route, err := c.strategy.Route(p.dest, remaining(p.aim, now), p.tolerance)
	if errors.Is(err, topology.ErrDelay) {
		// The strategy cannot do what remains (ttl: an undeclared delay). What was
		// asked is possible, and late by what has passed.
		return p.first, nil
	}
	return route, err
}

// maxUnroutable is how often a message may be returned, with everything
// declared again in between, before the error is final.
const maxUnroutable = 3

// again decides whether a try that failed with err may be followed by another,
// and mends what is missing on the broker. A non-nil result is final.
func (c *Client) again(ctx context.Context, sess *session, p *prepared, try int, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		p.unknown = true
		return c.deadline(err)
	case errors.Is(err, errChannelEnded):
		if limit, ok := sizeLimit(err); ok && len(p.pub.Body) > limit {
			c.sizes.learn(limit, time.Now())
			return brokerLimit(len(p.pub.Body), limit)
		}
		p.unknown = true
	case errors.Is(err, ErrUnroutable):
		if p.direct != "" || try >= maxUnroutable {
			return err
		}
		// A delay queue or a binding is gone: declare everything again.
		if derr := c.redeclare(ctx, sess, p.written); derr != nil {
			return fmt.Errorf("%w; declaring again: %w", err, derr)
		}
	case errors.Is(err, topology.ErrDelay), errors.Is(err, topology.ErrDestination):
		return err
	}
	return nil
}

// pause keeps a failing send from spinning.
func (c *Client) pause(ctx context.Context, try int) error {
	t := time.NewTimer(backoff(5*time.Millisecond, time.Second, try))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return c.deadline(ctx.Err())
	case <-t.C:
		return nil
	}
}

// deadline adds to the end of a context why nothing came: a blocked broker.
func (c *Client) deadline(err error) error {
	if reason := c.pub.blockedReason(); reason != "" && !errors.Is(err, ErrBlocked) {
		return fmt.Errorf("%w (%s): %w", ErrBlocked, reason, err)
	}
	return err
}

// failed turns a final cause into the caller's error.
func (c *Client) failed(p *prepared, cause error) error {
	return &SendError{ID: p.pub.MessageId, Unknown: p.unknown, Tries: p.tries, Cause: cause}
}
