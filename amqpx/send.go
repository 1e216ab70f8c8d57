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
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Send publishes one message and returns nil when the broker has confirmed it and routed it into a delay queue or,
// without a delay, to the destination. It retries with the same message id until the context's deadline, or for
// Config.SendTimeout if the context has none. It may be called concurrently, and concurrent calls share pipelined
// confirms. If a queue does not confirm or a destination is unusable, only the messages for it are delayed, and a
// message that the broker refuses does not delay others.
//
// Errors: if the message can never be sent, the error is a *MessageError, *topology.DelayError, *topology.KeyError or
// *topology.DestinationError. Otherwise it is a *SendError, in which errors.Is finds ErrNotSent or ErrOutcomeUnknown,
// and the cause: ErrBlocked, ErrNacked, ErrUnroutable, ErrClosed or the context's error. In a *SendError, errors.As
// finds the broker's *amqp091.Error, a *StuckError, or the *topology.DestinationError of a destination that is not
// listed (DeclareListed) or that the broker refuses. If the broker refuses a message permanently, for example with
// access refused (403), Send fails within seconds, even if the deadline is later.
func (c *Client) Send(ctx context.Context, m Message) error {
	if err := c.opened(); err != nil {
		return err
	}
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

// sendOne sends a message and runs the hooks. The parameter direct is the route to use instead of the strategy's route;
// it may be nil.
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

// endSend passes the result of a send to the SendEnd hooks.
func (c *Client) endSend(ctx context.Context, p *prepared, start time.Time, err error) {
	if !c.hooks.sends {
		return
	}
	c.hooks.sendEnd(ctx, SendEnd{
		ID: p.pub.MessageId, Destination: p.end(), Strategy: c.strategy.Name(), Duration: time.Since(start), Err: err,
		Hops: p.hops, Delay: p.delay, Tries: p.tries.Count,
	})
}

// end returns the final destination. For a message that is published directly to a queue, that is the queue of the
// route, such as a dead-letter queue.
func (p *prepared) end() topology.Destination {
	if p.routing != delayed && p.first.Exchange == "" {
		return topology.Destination{Queue: p.first.RoutingKey}
	}
	return p.dest
}

// sendContext returns ctx or, if ctx has no deadline, a context that ends after Config.SendTimeout.
func (c *Client) sendContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.SendTimeout)
}

// deliver tries to publish the message until it is confirmed, the context ends, or an error is final.
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

// attempt is one try to publish a message.
type attempt struct {
	by      *session // the session that the message was or would have been written to
	x       flow.Publication
	written bool
	not     flow.Outcome // the outcome if the message was not written
}

// wait returns the outcome of the try. If the message was written, wait blocks until the broker answers or ctx ends.
func (a *attempt) wait(ctx context.Context) flow.Outcome {
	if !a.written {
		return a.not
	}
	return a.by.pub.Outcome(ctx, &a.x)
}

func impossible(err error) attempt {
	return attempt{not: flow.Outcome{Kind: flow.Impossible, Err: err}}
}

// enterFunc waits for capacity in the publish window.
type enterFunc func(ctx context.Context, w *flow.Window, e flow.Entry, cost int64) (flow.Share, error)

func enterWindow(ctx context.Context, w *flow.Window, e flow.Entry, cost int64) (flow.Share, error) {
	return w.Enter(ctx, e, cost)
}

// publish waits for a connection, for the destination and for capacity in the publish window, then writes the
// message.
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
		key := flow.Route{Exchange: route.Exchange, To: [3]string{p.dest.Queue, p.dest.Exchange, p.dest.RoutingKey}}
		e := w.Find(key, route.Queue, p.dest.String)
		if e.Refused != nil {
			return impossible(e.Refused)
		}
		s, err := enter(ctx, w, e, cost)
		if err != nil {
			return impossible(c.deadline(stuckError(err)))
		}
		later, err := c.route(p, c.begin(p))
		if err != nil || later.Exchange != route.Exchange || later.Queue != route.Queue {
			w.GiveUp(s) // because of the wait, the remaining delay leads to another queue
			continue
		}
		x, err := c.write(ctx, sess, p, s, e.Suspect || p.tries.Alone, &later)
		if err != nil {
			return attempt{by: sess, not: flow.Outcome{Kind: flow.Unwritten, Err: err}}
		}
		return attempt{by: sess, x: x, written: true}
	}
}

// stuckError converts a *flow.StuckError to the exported *StuckError, and returns any other error unchanged.
func stuckError(err error) error {
	if e, ok := errors.AsType[*flow.StuckError](err); ok {
		return &StuckError{Queue: e.Queue, Since: e.Since, Err: e.Err}
	}
	return err
}

// write publishes the message on a route. The publication takes over the share s.
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

// ready waits for a connection that accepts publishes and on which the destination exists. If it returns an error,
// trying again is pointless.
func (c *Client) ready(ctx context.Context, p *prepared) (*session, error) {
	var last error
	if p.routing == immediate {
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
		if p.routing != delayed {
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

// routeSlack is how long after the call to Send the route is still chosen for the requested delay. After that it is
// chosen for the remaining delay. Without the slack, a declared delay would be shortened by a few microseconds, and
// would no longer be one of the strategy's declared delays.
const routeSlack = 5 * time.Millisecond

// route returns the route for the remaining delay. The delay ends when the first route would have delivered the
// message, which may be later than the due time. If route counted down to the due time instead, a message that took
// longer to send would be rounded differently, and might overtake a message that was sent earlier with the same delay.
// For a message with a lead, route counts down to the due time, because its consumer handles messages in the order of
// their due times, and sets p.lead to the lead that the new route leaves.
func (c *Client) route(p *prepared, now time.Time) (topology.Route, error) {
	if p.routing != delayed || now.Sub(p.start) <= routeSlack || p.first.InstantHeader != "" {
		return p.first, nil // a route with an absolute time does not depend on the remaining delay
	}
	if p.lead > 0 {
		r, lead, err := c.ahead(p.dest, remaining(p.due-floorMilli(p.offset), now), c.cfg.lead(p.dest), p.tolerance)
		if err == nil {
			p.lead = lead
			return r, nil
		}
	}
	left := remaining(p.aim, now)
	route, err := c.strategy.Route(p.dest, left, p.tolerance)
	if errors.Is(err, topology.ErrDelay) {
		// The strategy does not support the remaining delay. (The ttl strategy supports only declared delays.) Use the
		// requested delay, which makes the message late by the time that has passed.
		return p.first, nil
	}
	return route, err
}

// follow decides the next step from the outcome of a try. If a delay queue, an exchange or a binding is missing on the
// broker, it declares everything again.
func (c *Client) follow(ctx context.Context, p *prepared, sess *session, o flow.Outcome) flow.Step {
	switch {
	case o.Kind == flow.Expired:
		o.Err = c.deadline(o.Err)
	case o.Kind == flow.Refused:
		o.Err = c.learnSize(p, o.Err)
	case o.Kind == flow.Nacked && p.routing != delayed && p.dest.ToExchange():
		p.tries.Unknown = true // one of the exchange's queues has refused the message, and others may have accepted it
		c.detour(p)
	}
	var s flow.Step
	p.tries, s = p.tries.Next(o)
	if p.routing == immediate && s.Do == flow.GiveUp && o.Kind == flow.Refused && o.Code == amqp.NotFound {
		s.Err = fmt.Errorf("%w: %w", &topology.DestinationError{Destination: p.dest, Reason: declare.NoExchange}, s.Err)
	}
	if s.Do != flow.Declare {
		return s
	}
	// A delay queue, its exchange or a binding no longer exists.
	err := c.decl.Again(ctx, sess.Session, p.written)
	if err == nil {
		return s
	}
	because := fmt.Errorf("%w; declaring again: %w", o.Err, err)
	if permanent(err) || errors.Is(err, topology.ErrDestination) {
		return flow.Step{Do: flow.GiveUp, Err: because}
	}
	p.tries.Last = because // not permanent: the connection may have been lost, for example, so try again
	return s
}

// learnSize remembers the broker's maximum message size if a refusal reports it. It returns err, or a
// *MessageError in its place if the message was too large.
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

// detour switches a message without a delay to the strategy's route. The message then waits in its route queue until
// the queue that refuses it accepts it. On a direct route, the exchange's other queues would receive another copy at
// each try.
func (c *Client) detour(p *prepared) {
	if p.routing != immediate {
		return
	}
	if r, err := c.strategy.Route(p.dest, 0, 0); err == nil {
		p.first, p.routing, p.tries.Returns = r, delayed, 0
	}
}

// pause waits before the next try: for d or, if d is 0, for a back-off that grows with the number of earlier pauses. If
// ctx ends first, the error includes the reason why the last try failed.
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

// deadline adds ErrBlocked to the error of an ended context if an alarm on the broker blocks publishers.
func (c *Client) deadline(err error) error {
	if reason := c.pub.Status().Alarm; reason != "" && !errors.Is(err, ErrBlocked) {
		return fmt.Errorf("%w (%s): %w", ErrBlocked, reason, err)
	}
	return err
}

// failed wraps the final cause in the *SendError that the caller gets.
func (p *prepared) failed(cause error) *SendError {
	return &SendError{ID: p.pub.MessageId, Unknown: p.tries.MaybeTaken(), Tries: p.tries.Count, Cause: cause}
}

// Forward sends a received delivery to another destination, with the body, properties and headers as they were
// received. It returns nil when the broker has confirmed the message, and a Handler can then return nil to
// acknowledge the original. If the delivery has no ID, Forward generates one and sets it in d.
//
// With a delay, which counts from the call, the message goes through the strategy like a message of Send. Properties
// and headers that would interfere with the delay (Expiration, UserID, a transient DeliveryMode, and the headers CC and
// x-delay of another publisher) are carried in the header rabbitdelay-carried. The Delivery that the next consumer gets
// has them again, as well as the original Exchange and RoutingKey. Its Attempt is 1.
//
// Without a delay, the message is published directly to the exchange with the routing key, or to the queue. No
// route queue is needed, so an exchange may have any number of routing keys, and Config.MaxRouteQueues does not
// apply. The message has all of its properties and headers again. The broker then routes by CC, counts Expiration
// from now, and refuses a UserID that differs from the client's own user unless that user has the impersonator tag
// (an *amqp091.Error with code 406). If the message is routed to no queue, the error is ErrUnroutable. While one
// of several queues refuses the message, for example because it is full, the other queues receive a copy at each
// try, and the error is ErrOutcomeUnknown.
//
// Headers that the broker added for an earlier dead-lettering (x-death and the like) and headers that begin with
// "rabbitdelay-" are left out. Forward returns the same errors as Send, but it does not apply Config.SendTimeout: if
// ctx has no deadline, Forward tries without a time limit.
func (c *Client) Forward(ctx context.Context, d *Delivery, to topology.Destination, delay time.Duration) error {
	if err := c.opened(); err != nil {
		return err
	}
	if d == nil {
		return &MessageError{Field: "Delivery", Reason: "nil; expected the delivery to forward"}
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
