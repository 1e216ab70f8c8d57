package amqpx

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// prepared is a message that has passed its checks: its content, due time and destination, and the tries so far.
type prepared struct {
	content
	timing
	progress

	dest    topology.Destination
	routing routing
	first   topology.Route // the route for the requested delay
}

// progress is the state of the tries to publish a message.
type progress struct {
	tries   flow.Tries
	pauses  int
	written time.Time // when the message was last written to a connection
	hops    int
	delay   time.Duration // delay of the last route
}

// routing says how a message is routed to its destination.
type routing int

const (
	delayed   routing = iota // through the strategy
	immediate                // directly, because the message has no delay
	straight                 // on a route that the caller has chosen
)

// prepare checks a message and converts it to its wire form. A relative delay counts from the given time. If direct is
// not nil, it is a route without a delay that bypasses the strategy, for received messages that are passed on.
func (c *Client) prepare(m *Message, direct *topology.Route, now time.Time) (*prepared, error) {
	p := &prepared{}
	if err := c.prepareAs(p, m, direct, now); err != nil {
		return nil, err
	}
	return p, nil
}

// prepareAs is like prepare, but fills in a prepared that the caller has allocated. It keeps no reference to m
// itself, only to what m points to. Even if it returns an error, it has set the fields of p that SendEnd reports.
func (c *Client) prepareAs(p *prepared, m *Message, direct *topology.Route, now time.Time) error {
	p.dest, p.pub.MessageId = topology.Destination{Queue: m.Queue, Exchange: m.Exchange, RoutingKey: m.RoutingKey}, m.ID
	if err := c.accept(m, now); err != nil {
		return err
	}
	if m.Queue == "" && m.Exchange == "" {
		// The default exchange routes by queue name.
		p.dest = topology.Destination{Queue: m.RoutingKey}
	}
	var delay time.Duration
	p.timing, delay = timingOf(m, now, time.Since(c.began))
	if err := c.chooseRoute(p, m, direct, delay); err != nil {
		return err
	}
	p.content = contentOf(m, now)
	return nil
}

// accept returns an error if the message would be refused on every route, by the client or, because of its size, by the
// broker.
func (c *Client) accept(m *Message, now time.Time) error {
	if err := m.Check(); err != nil {
		return err
	}
	if len(m.Body) > c.cfg.MaxBody && m.own == nil { // a received message may be passed on even if it is larger
		return &MessageError{"Body", fmt.Sprintf("%d bytes; expected at most %d: store the payload elsewhere and send a reference", len(m.Body), c.cfg.MaxBody)}
	}
	return c.sizes.check(len(m.Body), now)
}

// chooseRoute decides whether the message goes through the strategy, and sets its route for the whole delay and its
// lead. It fails, without needing a connection, if the strategy does not support the delay.
func (c *Client) chooseRoute(p *prepared, m *Message, direct *topology.Route, delay time.Duration) error {
	switch {
	case direct != nil:
		p.routing, p.first = straight, *direct
	case delay == 0 && m.as == nil && c.reaches(p.dest):
		if err := p.dest.Validate(c.strategy.Prefix()); err != nil {
			return err
		}
		p.routing, p.first = immediate, *straightTo(p.dest)
	default:
		lead := c.cfg.lead(p.dest)
		if delay == 0 || m.as != nil || m.Tolerance > 0 {
			lead = 0
		}
		route, lead, err := c.ahead(p.dest, delay, lead, m.Tolerance)
		if err != nil {
			return err
		}
		p.routing, p.first = delayed, route
		p.deliverAhead(lead, route.Delay)
		return nil
	}
	p.tries.Returns = flow.MaxUnroutable - 1 // such a route uses no delay queue that could be declared again, so the first return is final
	return nil
}

// leadSlack is how much earlier than its lead a message may be delivered if that saves hops. With a second, there is
// always a route for a whole number of seconds, so most delays below a minute need only one hop, whatever the
// resolution is.
const leadSlack = time.Second

// ahead returns the route for a message that is due after a delay, and the lead with which the message is actually
// delivered. The parameter lead is the requested one.
//
// If an earlier delivery saves hops, the message is delivered up to leadSlack earlier. A hop costs the broker more than
// it costs the consumer to hold the message for another second.
//
// If the delay is not longer than the requested lead, the lead becomes the delay minus the strategy's shortest delay,
// so that the message still goes through a delay queue. The consumer can then tell from the broker's timestamp how much
// of the lead has passed, even if a clock is wrong. But a message whose delay is less than twice the shortest one is
// sent straight to its queue, because the broker's own lateness could use up the rest of its lead. The same applies to
// a message whose delay the strategy does not implement with a delay queue, as with the plugin.
func (c *Client) ahead(dest topology.Destination, delay, lead, tolerance time.Duration) (topology.Route, time.Duration, error) {
	if lead == 0 || delay > lead {
		r, err := c.strategy.Route(dest, delay-lead, tolerance)
		if err != nil || lead == 0 || r.Hops < 2 {
			return r, lead, err
		}
		earliest := max(time.Millisecond, delay-min(lead+leadSlack, topology.MaxLead))
		if e, err := c.strategy.Route(dest, earliest, delay-lead-earliest); err == nil && e.Hops < r.Hops {
			return e, max(lead, delay-e.Delay), nil
		}
		return r, lead, nil
	}
	if r, err := c.strategy.Route(dest, time.Millisecond, tolerance); err == nil && r.Hops > 0 && delay >= 2*r.Delay {
		return r, delay - r.Delay, nil
	}
	r, err := c.strategy.Route(dest, 0, tolerance)
	return r, delay, err
}

// Check returns the error that Send would return for the message before publishing it, without needing a connection.
// The error is a *MessageError, *topology.DelayError, *topology.KeyError or *topology.DestinationError. The error for a
// destination that is not listed (DeclareListed) is also a *topology.DestinationError, which Send would wrap in a
// *SendError.
func (c *Client) Check(m Message) error {
	if err := c.opened(); err != nil {
		return err
	}
	p := &prepared{}
	if err := c.prepareAs(p, &m, nil, c.cfg.Now()); err != nil {
		return err
	}
	return c.listed(p.dest)
}

// newID returns a new UUIDv7. Its random part comes from the runtime's generator, which the operating system has
// seeded. Ids must be unique, but they need not be secret.
func newID(now time.Time) string {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], uint64(now.UnixMilli())<<16|rand.Uint64()&0x0FFF|0x7000)
	binary.BigEndian.PutUint64(u[8:], rand.Uint64()&(1<<62-1)|1<<63)
	return u.String()
}

// begin returns the time for which a route is chosen. A relative delay is measured with the monotonic clock, so wall
// clock changes do not affect it. If the delay counts from the first write of the message, each call restarts the delay
// until the message has been written.
func (c *Client) begin(p *prepared) time.Time {
	if p.from == fromEpoch {
		return c.cfg.Now()
	}
	up := time.Since(c.began)
	now := p.start.Add(up - p.up)
	if p.from == fromWrite && p.tries.Count == 0 {
		p.restart(now)
		p.up = up
	}
	return now
}

// restart makes the delay start at the given time, which also becomes the message's timestamp.
func (p *prepared) restart(now time.Time) {
	p.timing.restart(now)
	p.pub.Timestamp = now
}

// reaches reports whether a message without a delay is published directly to its destination instead of through the
// strategy. That is the case for an exchange, which would otherwise need a route queue per routing key, and for a
// broker-named reply queue, which no other connection can bind if it is exclusive. With DeclareNothing, reaches returns
// false, because the route queues already exist and the client may have no permission for the exchange.
func (c *Client) reaches(d topology.Destination) bool {
	return (d.ToExchange() || d.ServerNamed()) && c.cfg.Declare != DeclareNothing
}

// straightTo returns a route to a destination without a delay that bypasses the strategy.
func straightTo(d topology.Destination) *topology.Route {
	if d.ToExchange() {
		return &topology.Route{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Mandatory: true}
	}
	return &topology.Route{RoutingKey: d.Queue, Queue: d.Queue, Mandatory: true}
}
