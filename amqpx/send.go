package amqpx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
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
// errors.As finds the broker's *amqp091.Error, a *StuckError, and the
// *topology.DestinationError of a destination that is not listed (DeclareListed) or
// that the broker refuses). A message that the broker refuses permanently, such as for
// access (403), fails within seconds, whatever the deadline.
func (c *Client) Send(ctx context.Context, m Message) error {
	ctx, cancel := c.sendContext(ctx)
	defer cancel()
	if c.hooks.sends {
		return c.sendOne(ctx, m, nil)
	}
	p := &prepared{}
	if err := c.prepareAs(p, &m, nil, c.cfg.Now()); err != nil {
		return err
	}
	return c.deliver(ctx, p)
}

// sendOne sends to the message's destination through the strategy, or straight by a route
// that is given, and runs the hooks.
func (c *Client) sendOne(ctx context.Context, m Message, direct *topology.Route) error {
	start := time.Now()
	ctx, m = c.hooks.sendStart(ctx, m)
	p := &prepared{}
	err := c.prepareAs(p, &m, direct, c.cfg.Now())
	if err == nil {
		err = c.deliver(ctx, p)
	}
	c.endSend(ctx, p, start, err)
	return err
}

// isOfHeaders reports whether a message was refused for its headers.
func isOfHeaders(err error) bool {
	bad, ok := errors.AsType[*MessageError](err)
	return ok && bad.Field == "Headers"
}

func (c *Client) endSend(ctx context.Context, p *prepared, start time.Time, err error) {
	if !c.hooks.sends {
		return
	}
	c.hooks.sendEnd(ctx, SendEnd{
		ID: p.pub.MessageId, Destination: p.end(), Strategy: c.strategy.Name(), Duration: time.Since(start), Err: err,
		Hops: p.hops, Delay: p.delay, Tries: p.tries.Count,
	})
}

// end returns the final destination. A message that bypasses the strategy takes it from
// its route.
func (p *prepared) end() topology.Destination {
	if p.way != delayed && p.first.Exchange == "" {
		return topology.Destination{Queue: p.first.RoutingKey}
	}
	return p.dest
}

// sendContext bounds a context without a deadline by Config.SendTimeout.
func (c *Client) sendContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.SendTimeout)
}

// deliver tries until the message is confirmed, the context ends, or the error
// is final.
func (c *Client) deliver(ctx context.Context, p *prepared) (err error) {
	if err := c.sends.admit(1); err != nil {
		return p.failed(err)
	}
	defer func() { c.sends.done(err) }()
	for {
		a := c.publish(ctx, p, enterWindow)
		s := c.follow(ctx, p, a.by, a.wait(ctx))
		switch s.Do {
		case flow.Finish:
			return nil
		case flow.GiveUp:
			return p.failed(s.Err)
		}
		if err := c.pause(ctx, p, s.Pause); err != nil {
			return p.failed(err)
		}
	}
}

// attempt is one attempt to publish a message.
type attempt struct {
	by      *session // that it was written to, or would have been
	x       flow.Publication
	written bool
	not     flow.Outcome // why it was not written
}

// wait waits for what becomes of the attempt.
func (a *attempt) wait(ctx context.Context) flow.Outcome {
	if !a.written {
		return a.not
	}
	return a.by.pub.Outcome(ctx, &a.x)
}

func impossible(err error) attempt {
	return attempt{not: flow.Outcome{Kind: flow.Impossible, Err: err}}
}

// enterFunc waits for a place in the window.
type enterFunc func(ctx context.Context, w *flow.Window, e flow.Entry, cost int64) (flow.Share, error)

func enterWindow(ctx context.Context, w *flow.Window, e flow.Entry, cost int64) (flow.Share, error) {
	return w.Enter(ctx, e, cost)
}

// publish writes the message once everything it needs is there: a connection, its
// destination, a place in the window.
func (c *Client) publish(ctx context.Context, p *prepared, enter enterFunc) attempt {
	sess, err := c.ready(ctx, p)
	if err != nil {
		return impossible(err)
	}
	w := sess.pub.Window
	cost := w.Cost(p.pub.Body)
	for {
		route, err := c.route(p, c.begin(p))
		if err != nil {
			return impossible(err)
		}
		if err := cmp.Or(c.checkPriority(sess, p, &route), checkFrame(sess.Conn.Config.FrameSize, p, route.Headers)); err != nil {
			return impossible(err)
		}
		way := flow.Way{Exchange: route.Exchange, To: [3]string{p.dest.Queue, p.dest.Exchange, p.dest.RoutingKey}}
		e := w.Find(way, route.Queue, p.dest.String)
		if e.Refused != nil {
			return impossible(e.Refused)
		}
		s, err := enter(ctx, w, e, cost)
		if err != nil {
			return impossible(c.deadline(stuckError(err)))
		}
		later, err := c.route(p, c.begin(p))
		if err != nil || later.Exchange != route.Exchange || later.Queue != route.Queue {
			w.GiveUp(s) // by what is left after the wait it goes into another queue
			continue
		}
		x, err := c.write(ctx, sess, p, s, e.Suspect || p.tries.Alone, &later)
		if err != nil {
			return attempt{by: sess, not: flow.Outcome{Kind: flow.Unwritten, Err: err}}
		}
		return attempt{by: sess, x: x, written: true}
	}
}

// stuckError returns the exported form of a *flow.StuckError, and any other error as it is.
func stuckError(err error) error {
	if e, ok := errors.AsType[*flow.StuckError](err); ok {
		return &StuckError{Queue: e.Queue, Since: e.Since, Err: e.Err}
	}
	return err
}

// write publishes by a route; the share is the publication's from then on.
func (c *Client) write(ctx context.Context, sess *session, p *prepared, s flow.Share, alone bool, route *topology.Route) (flow.Publication, error) {
	pub := p.pub
	pub.Headers = p.headers(route.Headers)
	defer recycle(pub.Headers)
	if route.InstantHeader != "" {
		at, err := sess.Instant(p.aim)
		if err != nil {
			sess.pub.Window.GiveUp(s)
			return flow.Publication{}, err
		}
		pub.Headers[route.InstantHeader] = at
	}
	p.hops, p.delay = route.Hops, route.Delay
	x, err := sess.pub.Publish(ctx, s, alone, flow.Address{Exchange: route.Exchange, RoutingKey: route.RoutingKey, Mandatory: route.Mandatory}, pub)
	if err == nil {
		p.written = time.Now()
	}
	return x, err
}

// ready waits for a connection that takes publishes and has the destination. Its
// errors are final.
func (c *Client) ready(ctx context.Context, p *prepared) (*session, error) {
	var last error
	if p.way == atOnce {
		if err := c.listed(p.dest); err != nil {
			return nil, err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, flow.Because(c.deadline(err), last)
		}
		sess, err := c.pub.Wait(ctx, true)
		if err != nil {
			return nil, flow.Because(err, last)
		}
		if p.way != delayed {
			return sess, nil
		}
		err = c.decl.Ensure(ctx, sess.Session, p.dest)
		switch {
		case err == nil:
			return sess, nil
		case ctx.Err() != nil:
			return nil, flow.Because(c.deadline(err), last)
		case errors.Is(err, topology.ErrDestination), permanent(err):
			return nil, err
		}
		last = err
		if err := c.pause(ctx, p, 0); err != nil {
			return nil, flow.Because(err, last)
		}
	}
}

// routeSlack is how long after Send began the delay that was asked for still
// stands. Within it a declared delay stays the declared delay, for a strategy
// that knows no other; after it the delay is what remains.
const routeSlack = 5 * time.Millisecond

// route returns the way for what is left of the delay. It aims at the end of the delay that
// was found for start, and not at the due instant before it: else a message that
// took longer to be sent would be rounded differently, and might overtake one
// that was sent before it with the same delay.
func (c *Client) route(p *prepared, now time.Time) (topology.Route, error) {
	if p.way != delayed || now.Sub(p.start) <= routeSlack || p.first.InstantHeader != "" {
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

// follow decides by the outcome of a try what to do next, and mends what is missing on the
// broker.
func (c *Client) follow(ctx context.Context, p *prepared, sess *session, o flow.Outcome) flow.Step {
	switch {
	case o.Kind == flow.Expired:
		o.Err = c.deadline(o.Err)
	case o.Kind == flow.Refused:
		o.Err = c.learnSize(p, o.Err)
	case o.Kind == flow.Nacked && p.way != delayed && p.dest.ToExchange():
		p.tries.Unknown = true // of several queues behind the exchange one has refused it, and others have it
		c.detour(p)
	}
	var s flow.Step
	p.tries, s = p.tries.Next(o)
	if p.way == atOnce && s.Do == flow.GiveUp && o.Kind == flow.Refused && o.Code == amqp.NotFound {
		s.Err = fmt.Errorf("%w: %w", &topology.DestinationError{Destination: p.dest, Reason: declare.NoExchange}, s.Err)
	}
	if s.Do != flow.Declare {
		return s
	}
	// A delay queue, its exchange or a binding is gone.
	err := c.decl.Again(ctx, sess.Session, p.written)
	if err == nil {
		return s
	}
	because := fmt.Errorf("%w; declaring again: %w", o.Err, err)
	if permanent(err) || errors.Is(err, topology.ErrDestination) {
		return flow.Step{Do: flow.GiveUp, Err: because}
	}
	p.tries.Last = because // the connection was lost, say: the next try finds out
	return s
}

// learnSize takes in what a refusal says about the broker's largest body.
func (c *Client) learnSize(p *prepared, err error) error {
	ae, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return err
	}
	limit, ok := flow.SizeLimit(ae.Reason)
	if !ok {
		return err
	}
	c.sizes.learn(limit, c.cfg.Now())
	return brokerLimit(len(p.pub.Body), limit)
}

// detour sends a message that nothing delays the way of those that are delayed: its
// route queue waits for the one queue that refuses it, and no other gets it once more at
// each try.
func (c *Client) detour(p *prepared) {
	if p.way != atOnce {
		return
	}
	if r, err := c.strategy.Route(p.dest, 0, 0); err == nil {
		p.first, p.way, p.tries.Returns = r, delayed, 0
	}
}

// pause keeps a failing send from spinning, for d or else by how often it has
// failed.
func (c *Client) pause(ctx context.Context, p *prepared, d time.Duration) error {
	if d == 0 {
		p.pauses++
		d = wait.Backoff(5*time.Millisecond, time.Second, p.pauses)
	}
	if err := wait.For(ctx, d); err != nil {
		return flow.Because(c.deadline(err), p.tries.Last)
	}
	return nil
}

// deadline adds to the end of a context why nothing came: a blocked broker.
func (c *Client) deadline(err error) error {
	if reason := c.pub.Status().Alarm; reason != "" && !errors.Is(err, ErrBlocked) {
		return fmt.Errorf("%w (%s): %w", ErrBlocked, reason, err)
	}
	return err
}

// failed turns a final cause into the caller's error.
func (p *prepared) failed(cause error) *SendError {
	return &SendError{ID: p.pub.MessageId, Unknown: p.tries.MaybeTaken(), Tries: p.tries.Count, Cause: cause}
}

// Forward sends a delivery on to another destination, body, properties and headers
// as they were received, and returns when the broker has confirmed it; a Handler
// then returns nil. Without an ID it gets one, which d has from then on.
//
// With a delay, which counts from the call, it goes through the strategy like a
// message of Send. What would disturb it on the way (Expiration, UserID, a transient
// DeliveryMode, the headers CC and x-delay of a foreign publisher) is carried in the
// header rabbitdelay-carried, and the next Delivery has it again, as well as
// Exchange and RoutingKey. Its attempts begin with 1.
//
// Without a delay it goes straight to the exchange with the routing key, or to the
// queue: no route queue is needed, so an exchange may have any number of routing
// keys (Config.MaxRouteQueues does not apply). It then has all of these again. The
// broker routes by CC, counts Expiration from now, and refuses a UserID that is not
// the client's own user unless that has the tag impersonator (an *amqp091.Error with
// code 406). A message that is routed to no queue is an error: ErrUnroutable. While one
// of several queues refuses it, as one does that is full, the others get it at each try,
// and the error is ErrOutcomeUnknown.
//
// The broker's own headers of an earlier death (x-death and the like) and those that
// begin with "rabbitdelay-" are left out. Errors are those of Send.
func (c *Client) Forward(ctx context.Context, d *Delivery, to topology.Destination, delay time.Duration) error {
	if d == nil {
		return &MessageError{Field: "Delivery", Reason: "nil; expected the delivery to send on"}
	}
	if reason := units.Duration(delay); reason != "" {
		return &MessageError{Field: "Delay", Reason: reason}
	}
	if d.ID == "" {
		d.ID = newID(time.Now())
	}
	m := d.message()
	m.Queue, m.Exchange, m.RoutingKey = to.Queue, to.Exchange, to.RoutingKey
	m.own = amqp.Table{}
	if delay != 0 {
		m.Delay = delay
		header.Origin(m.own, d.Exchange, d.RoutingKey)
		if to.ToExchange() {
			delete(m.own, HeaderDestination)
		}
		d.properties().Carry(m.own)
		return c.sendOne(ctx, m, nil)
	}
	if err := to.Validate(c.strategy.Prefix()); err != nil {
		return err
	}
	m.DeliverAt = d.DueAt
	m.as = d.properties()
	m.as.CarryRouting(m.own)
	return c.sendOne(ctx, m, straightTo(to))
}
