package amqpx

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// prepared is a message that has passed its checks, with the state of its tries.
type prepared struct {
	dest      topology.Destination
	way       way
	start     time.Time
	up        time.Duration // the client's uptime at start
	asked     time.Duration // the requested delay, counted from start
	due       int64         // epoch ms, by the clock of the message's DeliverAt
	aim       int64         // epoch ms, by this process's clock: see Client.route; never earlier than due minus lead
	from      origin
	offset    time.Duration // of due's clock from this process's clock
	lead      time.Duration // how long before due the broker delivers the message
	lowers    bool          // lower a priority that the delay queues do not support, instead of refusing the message
	tolerance time.Duration
	pub       amqp.Publishing // without Headers
	user, own amqp.Table      // headers: the user's, and rabbitdelay's own on a message that is passed on
	added     amqp.Table      // headers that hooks added
	attempt   int64
	version   int64
	created   int64 // when the task's row was written, in epoch ms; 0 for none
	tries     flow.Tries
	pauses    int
	written   time.Time // when it was last written to a connection
	hops      int
	delay     time.Duration  // of the last route
	first     topology.Route // the route for the requested delay
}

// way is how a message is routed to its destination.
type way int

const (
	delayed  way = iota // through the strategy
	atOnce              // directly, because the message has no delay
	straight            // on a route that the caller has chosen
)

// origin is the point in time from which a message's delay is counted.
type origin int

const (
	fromEpoch origin = iota // the message has an absolute due time
	fromCall                // the call of Send
	fromWrite               // the first write of the message to a connection
)

// prepare checks a message and converts it to its wire form. Delay counts from now. If direct is not nil, it is a
// route without a delay that bypasses the strategy, for received messages that are passed on.
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
	dest := topology.Destination{Queue: m.Queue, Exchange: m.Exchange, RoutingKey: m.RoutingKey}
	p.dest, p.pub.MessageId = dest, m.ID
	if err := m.Check(); err != nil {
		return err
	}
	if m.Queue == "" && m.Exchange == "" {
		// The default exchange routes by queue name.
		dest = topology.Destination{Queue: m.RoutingKey}
	}
	if len(m.Body) > c.cfg.MaxBody && m.own == nil { // a received message may be passed on even if it is larger
		return &MessageError{"Body", fmt.Sprintf("%d bytes; expected at most %d: store the payload elsewhere and send a reference", len(m.Body), c.cfg.MaxBody)}
	}
	if err := c.sizes.check(len(m.Body), now); err != nil {
		return err
	}
	// A delay that is too long is refused here, before a connection is needed.
	due := dueAt(m, now)
	aim := due - floorMilli(m.ClockOffset)
	asked := remaining(aim, now)
	if m.DeliverAt.IsZero() {
		// The difference may be 1 ms too long, because now need not be a whole number of milliseconds.
		asked = min(asked, ceilMillis(m.Delay))
	}
	var r topology.Route
	var lead time.Duration
	w := delayed
	if direct != nil {
		w = straight
	} else if asked == 0 && m.as == nil && c.reaches(dest) {
		w = atOnce
		if err := dest.Validate(c.strategy.Prefix()); err != nil {
			return err
		}
		direct = straightTo(dest)
	}
	if direct != nil {
		r = *direct
	} else {
		var err error
		if lead = c.cfg.lead(dest); lead > 0 && (asked == 0 || m.as != nil || m.Tolerance > 0) {
			lead = 0
		}
		aim -= lead.Milliseconds()
		if r, err = c.strategy.Route(dest, max(asked-lead, 0), m.Tolerance); err != nil {
			return err
		}
		if m.DeliverAt.IsZero() && m.Tolerance == 0 {
			aim = ceilMilli(now) + r.Delay.Milliseconds()
		}
	}
	id := m.ID
	if id == "" {
		id = newID(now)
	}
	t := flow.Tries{}
	if direct != nil {
		t.Returns = flow.MaxUnroutable - 1 // there is nothing to declare again for a direct route
	}
	*p = prepared{
		tries: t,
		dest:  dest, way: w, start: now, up: time.Since(c.began), asked: asked, due: due, aim: aim, offset: m.ClockOffset, lead: lead,
		lowers: m.own != nil && m.as == nil, tolerance: m.Tolerance, first: r,
		user: m.Headers, own: m.own, attempt: int64(max(m.Attempt, 1)), version: m.Version, created: milliOf(m.Created),
		pub: amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Timestamp: stamp(now, m.ClockOffset),
			Body:        m.Body,
			ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, Type: m.Type,
			CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, AppId: m.AppID, Priority: m.Priority,
		},
	}
	if m.DeliverAt.IsZero() {
		p.from = fromCall
	}
	if !m.sent.IsZero() {
		p.pub.Timestamp = m.sent
	}
	p.pub.UserId = m.userID
	p.added = m.sendable()
	if m.as != nil {
		m.as.Apply(&p.pub)
	}
	return nil
}

// Check returns the error with which Send would refuse the message before publishing it, without needing a
// connection. The error is a *MessageError, *topology.DelayError, *topology.KeyError or
// *topology.DestinationError. It is a *topology.DestinationError also for a destination that is not listed
// (DeclareListed), for which Send wraps it in a *SendError.
func (c *Client) Check(m Message) error {
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

// begin returns the time for which a route is chosen. A relative delay is measured with the monotonic clock, so
// wall clock changes do not affect it. If the delay counts from the first write of the message,
// begin lets it start now until the message has been written.
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

// restart makes the delay count from now.
func (p *prepared) restart(now time.Time) {
	p.due += ceilMillis(now.Sub(p.start)).Milliseconds()
	p.aim += ceilMilli(now) - ceilMilli(p.start)
	p.start = now
	p.pub.Timestamp = now
}

// maxDelay is the longest delay that can be expressed in whole milliseconds. It is 292 years, longer than any
// strategy's maximum.
const maxDelay = time.Duration(math.MaxInt64 - math.MaxInt64%int64(time.Millisecond))

// dueAt returns the due time in epoch milliseconds, rounded up, at most maxDelay from now. The broker truncates
// its clock to milliseconds, so a message may reach its consumer up to a millisecond before its due time, and the
// consumer then holds it.
func dueAt(m *Message, now time.Time) int64 {
	latest := now.UnixMilli() + maxDelay.Milliseconds()
	if m.DeliverAt.IsZero() && m.Delay == 0 {
		return now.UnixMilli() // immediately, without rounding up
	}
	if m.DeliverAt.IsZero() {
		return min(ceilMilli(now.Add(min(m.Delay, maxDelay))), latest)
	}
	// Before and After do not work here because a time in the very distant future, such as
	// time.Unix(math.MaxInt64, 0), overflows inside time.Time. Only Unix returns the intended number.
	switch at := m.DeliverAt.Unix(); {
	case at < 0:
		return 0
	case at >= latest/1000:
		return latest
	}
	return ceilMilli(m.DeliverAt)
}

// ceilMilli returns a time in epoch milliseconds, rounded up.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) > 0 {
		ms++
	}
	return ms
}

// ceilMillis rounds a duration up to whole milliseconds, at most maxDelay.
func ceilMillis(d time.Duration) time.Duration {
	if d > maxDelay {
		return maxDelay
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// floorMilli returns a duration in milliseconds, rounded down.
func floorMilli(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond < 0 {
		ms--
	}
	return ms
}

// remaining returns the delay from now until due. It is never negative and never overflows.
func remaining(due int64, now time.Time) time.Duration {
	ms := due - now.UnixMilli()
	switch {
	case ms <= 0:
		return 0
	case ms > maxDelay.Milliseconds():
		return maxDelay
	}
	return time.Duration(ms) * time.Millisecond
}

// reaches reports whether a message without a delay is published directly to the destination. That is the case for
// an exchange, which would otherwise need a route queue per routing key, and for a broker-named reply queue, which
// no other connection can bind if it is exclusive. With DeclareNothing, route queues already exist, and the client
// may have no permission on the exchange, so the answer is no.
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

// milliOf returns a time in epoch milliseconds as headers carry it, or 0 for the zero time.
func milliOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// headers returns the table of headers to publish. The caller passes it to recycle when it is no longer needed.
func (p *prepared) headers(ofRoute amqp.Table) amqp.Table {
	t := userHeaders(p.user, p.added)
	maps.Copy(t, p.own)
	maps.Copy(t, ofRoute)
	t[HeaderDue] = p.due
	_, dead := p.own[HeaderReason]
	if p.attempt > 1 || dead {
		t[HeaderAttempt] = p.attempt
	}
	if _, known := p.own[HeaderDestination]; !known && (p.dest.ToExchange() || dead) {
		t[HeaderDestination] = p.dest.String()
	}
	if p.version != 0 {
		t[HeaderVersion] = p.version
	}
	if p.created != 0 {
		t[HeaderCreated] = p.created
	}
	if p.from == fromEpoch && p.way != straight {
		t[HeaderAbsolute] = true
	}
	if p.offset >= tellOffset {
		t[HeaderClockOffset] = floorMilli(p.offset)
	}
	if p.lead > 0 {
		t[HeaderLead] = p.lead.Milliseconds()
	}
	return t
}

// tellOffset is the smallest difference between clocks that a message reports. The store does not correct smaller
// ones.
const tellOffset = 20 * time.Millisecond

// stamp returns the timestamp property for a message that is sent now. If the due time's clock is behind this
// process's clock, stamp uses the due time's clock, because this process's clock may be the wrong one and would
// make the message late. If it is ahead, a header carries the difference instead.
func stamp(now time.Time, offset time.Duration) time.Time {
	if offset <= -tellOffset {
		return now.Add(offset)
	}
	return now
}

// usualFrame is RabbitMQ's default frame_max. Any headers that checkHeaders accepts fit into it.
const usualFrame = 128 << 10

// checkFrame rejects a message whose headers do not fit into a frame of this connection. On a broker with a
// frame_max below the default, such a message would end the connection.
func checkFrame(most int, p *prepared, ofRoute amqp.Table) error {
	if most == 0 || most >= usualFrame {
		return nil
	}
	headers := p.headers(ofRoute)
	defer recycle(headers)
	m := table.Measure{Size: 128} // the frame itself, a time, and properties of fixed length
	m.Table(headers, 0)
	x := &p.pub
	for _, s := range []string{x.ContentType, x.ContentEncoding, x.CorrelationId, x.ReplyTo, x.Expiration, x.MessageId, x.Type, x.UserId, x.AppId} {
		m.Add(len(s))
	}
	if m.Size > most {
		return &MessageError{"Headers", fmt.Sprintf("more than fit into a frame of this broker (its frame_max is %d bytes): large data belongs in the body", most)}
	}
	return nil
}

// checkPriority rejects a priority that the delay queues do not support. If the message is one that a consumer
// publishes in place of a received one, it lowers the priority instead, because the original sender cannot be
// told.
func (c *Client) checkPriority(sess *session, p *prepared, route *topology.Route) error {
	if p.way != delayed || route.Hops == 0 {
		return nil
	}
	err := priorityProblem(sess.Broker, c.strategy, p.pub.Priority)
	if err != nil && p.lowers {
		p.pub.Priority, err = normalPriority, nil
	}
	return err
}

// sizes remembers the broker's maximum message size if it is smaller than Config.MaxBody. The broker reports its
// limit only by closing the channel that all senders share. The limit is therefore not tested with every message,
// but only once per askAgain, in case max_message_size has been raised.
type sizes struct{ last atomic.Pointer[sizeLimitSeen] }

type sizeLimitSeen struct {
	limit int
	at    time.Time
}

// askAgain is how long a learned limit is applied.
const askAgain = time.Minute

func (s *sizes) learn(limit int, now time.Time) { s.last.Store(&sizeLimitSeen{limit, now}) }

// check rejects a body that is larger than a recently learned limit.
func (s *sizes) check(size int, now time.Time) error {
	if l := s.last.Load(); l != nil && size > l.limit && now.Sub(l.at) < askAgain {
		return brokerLimit(size, l.limit)
	}
	return nil
}

func brokerLimit(size, limit int) *MessageError {
	return &MessageError{"Body", fmt.Sprintf("%d bytes; the broker takes at most %d (its max_message_size): store the payload elsewhere and send a reference", size, limit)}
}
