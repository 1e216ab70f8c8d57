package amqpx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Send publishes one message and returns nil when the broker has confirmed it
// and routed it into a delay queue (or, without a delay, to the destination).
// It retries under the same message id until the context's deadline
// (Config.SendTimeout without one). It is safe for many goroutines, whose
// confirms are pipelined; a queue that does not confirm, a destination that
// cannot be used and a message that the broker refuses hold up only their own
// messages.
//
// Errors: *MessageError, *topology.DelayError, *topology.KeyError and
// *topology.DestinationError for what can never be sent; *SendError otherwise,
// in which errors.Is finds ErrNotSent or ErrOutcomeUnknown and the cause
// (ErrBlocked, ErrNacked, ErrUnroutable, ErrClosed, the context's error;
// errors.As finds the broker's *amqp091.Error and a *StuckError). A message that the broker
// refuses permanently, such as for access (403), fails within seconds, whatever
// the deadline.
func (c *Client) Send(ctx context.Context, m Message) error {
	ctx, cancel := c.sendContext(ctx)
	defer cancel()
	if len(c.hooks.send) > 0 {
		return c.sendOne(ctx, m, nil)
	}
	p := &prepared{}
	if err := c.prepareAs(p, &m, nil, time.Now()); err != nil {
		return err
	}
	return c.deliver(ctx, p)
}

// sendOne sends to the message's destination through the strategy, or straight
// by a route that is given, and tells the hooks.
func (c *Client) sendOne(ctx context.Context, m Message, direct *topology.Route) error {
	start := time.Now()
	given := m.Headers
	ctx = c.sendStart(ctx, &m)
	p, err := c.prepare(&m, direct, start)
	if c.withoutHooked(&m, given, err) {
		p, err = c.prepare(&m, direct, start)
	}
	if err != nil {
		c.sendEnd(ctx, unprepared(&m), start, err)
		return err
	}
	err = c.deliver(ctx, p)
	c.sendEnd(ctx, p, start, err)
	return err
}

// withoutHooked takes the headers off again that hooks added to a message which was
// refused for its headers, and says whether it did.
func (c *Client) withoutHooked(m *Message, given amqp.Table, err error) bool {
	if !isOfHeaders(err) || len(c.hooks.send) == 0 {
		return false
	}
	m.Headers = given
	return true
}

// isOfHeaders tells whether a message was refused for its headers.
func isOfHeaders(err error) bool {
	bad, ok := errors.AsType[*MessageError](err)
	return ok && bad.Field == "Headers"
}

// unprepared is what hooks are told of a message that was refused.
func unprepared(m *Message) *prepared {
	return &prepared{
		dest: topology.Destination{Queue: m.Queue, Exchange: m.Exchange, RoutingKey: m.RoutingKey},
		pub:  amqp.Publishing{MessageId: m.ID},
	}
}

// sendStart runs the hooks, which may add headers, on a copy of the message's.
func (c *Client) sendStart(ctx context.Context, m *Message) context.Context {
	if len(c.hooks.send) > 0 {
		h := make(amqp.Table, len(m.Headers)+4)
		maps.Copy(h, m.Headers)
		m.Headers = h
	}
	return c.hooks.sendStart(ctx, m)
}

func (c *Client) sendEnd(ctx context.Context, p *prepared, start time.Time, err error) {
	if len(c.hooks.send) == 0 {
		return
	}
	c.hooks.sendEnd(ctx, SendEnd{
		ID: p.pub.MessageId, Destination: p.end(), Strategy: c.strategy.Name(), Duration: time.Since(start), Err: err,
		Hops: p.hops, Delay: p.delay, Tries: p.tries.count,
	})
}

// end is where the message ends, which past the strategy its route says.
func (p *prepared) end() topology.Destination {
	if p.direct && p.first.Exchange == "" {
		return topology.Destination{Queue: p.first.RoutingKey}
	}
	return p.dest
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
	if err := c.sends.begin(1); err != nil {
		return p.failed(err)
	}
	err := c.try(ctx, p)
	c.sends.end(err)
	return err
}

func (c *Client) try(ctx context.Context, p *prepared) error {
	for {
		x, o, written := c.publish(ctx, p, enterFlow)
		if written {
			o = x.by.pub.outcome(ctx, &x.publication)
		}
		s := c.follow(ctx, p, x.by, o)
		if s.done {
			return nil
		}
		if s.final == nil {
			s.final = c.pause(ctx, p, s.pause)
		}
		if s.final != nil {
			return p.failed(s.final)
		}
	}
}

// written is a publication with the session that it went through.
type written struct {
	publication
	by *session
}

// enterFunc waits for a place in the flow.
type enterFunc func(ctx context.Context, f *flow, e entry, cost int64) (share, error)

func enterFlow(ctx context.Context, f *flow, e entry, cost int64) (share, error) {
	return f.enter(ctx, e, cost)
}

// publish writes the message once everything it needs is there: a connection, its
// destination, a place in the flow. Unless it was written the outcome says why.
func (c *Client) publish(ctx context.Context, p *prepared, enter enterFunc) (x written, o outcome, ok bool) {
	sess, err := c.ready(ctx, p)
	if err != nil {
		return x, outcome{kind: impossible, err: err}, false
	}
	f := sess.pub.flow
	cost := f.cost(p.pub.Body)
	for {
		route, err := c.route(p, p.begin(time.Now()))
		if err != nil {
			return x, outcome{kind: impossible, err: err}, false
		}
		if err := cmp.Or(c.checkPriority(sess, p, &route), checkFrame(sess.conn.Config.FrameSize, p, route.Headers)); err != nil {
			return x, outcome{kind: impossible, err: err}, false
		}
		e := f.find(&route, p.dest)
		if e.refused != nil {
			return x, outcome{kind: impossible, err: e.refused}, false
		}
		s, err := enter(ctx, f, e, cost)
		if err != nil {
			return x, outcome{kind: impossible, err: c.deadline(err)}, false
		}
		later, err := c.route(p, p.begin(time.Now()))
		if err != nil || later.Exchange != route.Exchange || later.Queue != route.Queue {
			f.leave(s, false, false) // by what is left after the wait it goes into another queue
			continue
		}
		pub, err := c.write(ctx, sess, p, s, e.suspect || p.tries.alone, &later)
		if err != nil {
			return written{by: sess}, outcome{kind: unwritten, err: err}, false
		}
		return written{pub, sess}, outcome{}, true
	}
}

// write publishes by a route; the share is the publication's from then on.
func (c *Client) write(ctx context.Context, sess *session, p *prepared, s share, alone bool, route *topology.Route) (publication, error) {
	pub := p.pub
	pub.Headers = p.headers(route.Headers)
	if route.InstantHeader != "" {
		at, err := sess.instant(p.aim)
		if err != nil {
			giveBack(pub.Headers)
			sess.pub.flow.leave(s, false, false)
			return publication{}, err
		}
		pub.Headers[route.InstantHeader] = at
	}
	p.hops, p.delay = route.Hops, route.Delay
	x, err := sess.pub.publish(ctx, s, alone, route, pub)
	giveBack(pub.Headers)
	if err == nil {
		p.written = time.Now()
	}
	return x, err
}

// ready waits for a connection that takes publishes and has the destination. Its
// errors are final.
func (c *Client) ready(ctx context.Context, p *prepared) (*session, error) {
	var last error
	if p.atOnce {
		if err := c.listed(p.dest); err != nil {
			return nil, err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, because(c.deadline(err), last)
		}
		sess, err := c.pub.wait(ctx, true)
		if err != nil {
			return nil, because(err, last)
		}
		if p.direct {
			return sess, nil
		}
		err = c.dests.ensure(ctx, sess, p.dest)
		switch {
		case err == nil:
			return sess, nil
		case ctx.Err() != nil:
			return nil, because(c.deadline(err), last)
		case errors.Is(err, topology.ErrDestination), permanent(err):
			return nil, err
		}
		last = err
		if err := c.pause(ctx, p, 0); err != nil {
			return nil, because(err, last)
		}
	}
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
	if p.direct || now.Sub(p.start) <= routeSlack || p.first.InstantHeader != "" {
		return p.first, nil // by an instant, the way does not depend on what is left
	}
	route, err := c.strategy.Route(p.dest, remaining(p.aim, now), p.tolerance)
	if errors.Is(err, topology.ErrDelay) {
		// The strategy cannot do what remains (ttl: an undeclared delay). What was
		// asked is possible, and late by what has passed.
		return p.first, nil
	}
	return route, err
}

// follow takes in the outcome of a try, mends what is missing on the broker, and
// tells what to do next.
func (c *Client) follow(ctx context.Context, p *prepared, sess *session, o outcome) step {
	if o.kind == expired {
		o.err = c.deadline(o.err)
	}
	if ae, ok := asAMQP(o.err); ok && o.kind == refused {
		if limit, ok := sizeLimit(ae.Reason); ok {
			c.sizes.learn(limit, time.Now())
			o.err = brokerLimit(len(p.pub.Body), limit)
		}
	}
	if o.kind == nacked && p.direct && p.dest.ToExchange() {
		p.tries.unknown = true // of several queues behind the exchange one has refused it, and others have it
		c.detour(p)
	}
	var s step
	p.tries, s = p.tries.next(o)
	if p.atOnce && s.final != nil && o.kind == refused && o.code == amqp.NotFound {
		s.final = fmt.Errorf("%w: %w", &topology.DestinationError{Destination: p.dest, Reason: noExchange}, s.final)
	}
	if !s.declare {
		return s
	}
	// A delay queue, its exchange or a binding is gone.
	err := c.redeclare(ctx, sess, p.written)
	switch {
	case err == nil:
	case permanent(err), errors.Is(err, topology.ErrDestination):
		s.final = fmt.Errorf("%w; declaring again: %w", o.err, err)
	default: // the connection was lost, say: the next try finds out
		p.tries.last = fmt.Errorf("%w; declaring again: %w", o.err, err)
	}
	return s
}

// detour sends a message that nothing delays the way of those that are delayed: its
// route queue waits for the one queue that refuses it, and no other gets it once more at
// each try.
func (c *Client) detour(p *prepared) {
	if !p.atOnce {
		return
	}
	if r, err := c.strategy.Route(p.dest, 0, 0); err == nil {
		p.first, p.direct, p.atOnce, p.tries.returns = r, false, false, 0
	}
}

// pause keeps a failing send from spinning, for d or else by how often it has
// failed.
func (c *Client) pause(ctx context.Context, p *prepared, d time.Duration) error {
	if d == 0 {
		p.pauses++
		d = backoff(5*time.Millisecond, time.Second, p.pauses)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return because(c.deadline(ctx.Err()), p.tries.last)
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
func (p *prepared) failed(cause error) *SendError {
	return &SendError{ID: p.pub.MessageId, Unknown: p.tries.unknown || p.tries.doubt != "", Tries: p.tries.count, Cause: cause}
}
