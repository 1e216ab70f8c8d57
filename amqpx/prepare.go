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

// prepared is a message that has been checked, on its way through its tries.
type prepared struct {
	dest      topology.Destination
	way       way
	start     time.Time
	up        time.Duration // of the client, at start
	asked     time.Duration // the delay at start
	due       int64         // epoch ms, by the clock of the message's DeliverAt
	aim       int64         // epoch ms, by this process's clock: when the delay that start asks for ends; not before due less the lead
	from      origin
	offset    time.Duration // of the clock of due
	lead      time.Duration // the broker delivers it that much before
	lowers    bool          // its priority, where a delay queue does not take that; else it is refused
	tolerance time.Duration
	pub       amqp.Publishing // without Headers
	user, own amqp.Table      // headers: of the message, and of a message that is passed on
	added     amqp.Table      // headers of hooks
	attempt   int64
	version   int64
	created   int64 // of the task, in ms; 0 for none
	tries     flow.Tries
	pauses    int
	written   time.Time // the last try
	hops      int
	delay     time.Duration  // the delay of the last route
	first     topology.Route // for the delay that was asked for
}

// way is how a message goes to its destination.
type way int

const (
	delayed  way = iota // by the strategy
	atOnce              // straight, because nothing delays it
	straight            // by a route that was given
)

// origin is what a message's due instant is counted from.
type origin int

const (
	fromEpoch origin = iota
	fromCall         // of Send
	fromWrite        // when the message is first written
)

// prepare checks a message and turns it into what goes over the wire. now is
// the instant from which Delay counts; direct is a way past the strategy, without
// a delay, for what was received and is passed on; nil for none.
func (c *Client) prepare(m *Message, direct *topology.Route, now time.Time) (*prepared, error) {
	p := &prepared{}
	if err := c.prepareAs(p, m, direct, now); err != nil {
		return nil, err
	}
	return p, nil
}

// prepareAs is prepare for a message whose place is there already. It keeps
// nothing of m but what m points to. Beside an error, p has what SendEnd tells of m.
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
	if len(m.Body) > c.cfg.MaxBody && m.own == nil { // what was received may be passed on
		return &MessageError{"Body", fmt.Sprintf("%d bytes; expected at most %d: store the payload elsewhere and send a reference", len(m.Body), c.cfg.MaxBody)}
	}
	if err := c.sizes.check(len(m.Body), now); err != nil {
		return err
	}
	// The horizon is known before any connection is needed.
	due := dueAt(m, now)
	aim := due - floorMilli(m.ClockOffset)
	asked := remaining(aim, now)
	if m.DeliverAt.IsZero() {
		asked = min(asked, ceilMillis(m.Delay)) // the present need not be a whole number of milliseconds
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
		t.Returns = flow.MaxUnroutable - 1 // nothing of it could be declared again
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

// Check returns the error with which Send would refuse the message before it
// publishes anything: *MessageError, *topology.DelayError, *topology.KeyError or
// *topology.DestinationError; the last for a destination that is not listed, too, where
// Send has it in a *SendError. It needs no connection.
func (c *Client) Check(m Message) error {
	p := &prepared{}
	if err := c.prepareAs(p, &m, nil, c.cfg.Now()); err != nil {
		return err
	}
	return c.listed(p.dest)
}

// newID is a UUIDv7. Its random part comes from the runtime's generator, which the
// operating system seeded: ids must differ and need not be secret.
func newID(now time.Time) string {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], uint64(now.UnixMilli())<<16|rand.Uint64()&0x0FFF|0x7000)
	binary.BigEndian.PutUint64(u[8:], rand.Uint64()&(1<<62-1)|1<<63)
	return u.String()
}

// begin returns the instant for which a route is looked for. A delay is the same by every clock: its
// time passes by the monotonic one. One that counts from when its message is first written is counted
// from there.
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

// restart counts the delay from now.
func (p *prepared) restart(now time.Time) {
	p.due += ceilMillis(now.Sub(p.start)).Milliseconds()
	p.aim += ceilMilli(now) - ceilMilli(p.start)
	p.start = now
	p.pub.Timestamp = now
}

// maxDelay is the longest delay that can be expressed, in whole milliseconds: 292
// years, longer than any strategy's.
const maxDelay = time.Duration(math.MaxInt64 - math.MaxInt64%int64(time.Millisecond))

// dueAt is the due instant in epoch milliseconds, rounded up, at most maxDelay from now. The
// broker cuts its clock to milliseconds, so a message may reach its consumer up to a millisecond
// before it, and the consumer holds it.
func dueAt(m *Message, now time.Time) int64 {
	latest := now.UnixMilli() + maxDelay.Milliseconds()
	if m.DeliverAt.IsZero() && m.Delay == 0 {
		return now.UnixMilli() // nobody waits for it
	}
	if m.DeliverAt.IsZero() {
		return min(ceilMilli(now.Add(min(m.Delay, maxDelay))), latest)
	}
	// Not Before or After: an instant that is very far away, such as
	// time.Unix(math.MaxInt64, 0), overflows in the time.Time itself, and only Unix
	// gives back the number that was meant.
	switch at := m.DeliverAt.Unix(); {
	case at < 0:
		return 0
	case at >= latest/1000:
		return latest
	}
	return ceilMilli(m.DeliverAt)
}

// ceilMilli is an instant in epoch milliseconds, rounded up.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) > 0 {
		ms++
	}
	return ms
}

// ceilMillis is a duration in whole milliseconds, rounded up, at most maxDelay.
func ceilMillis(d time.Duration) time.Duration {
	if d > maxDelay {
		return maxDelay
	}
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// floorMilli is a duration in milliseconds, rounded down.
func floorMilli(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond < 0 {
		ms--
	}
	return ms
}

// remaining is the delay until due, from now, not negative and not overflowing.
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

// reaches reports whether what nothing delays goes straight to the destination: to an
// exchange, which would need a route queue for each routing key, and to a queue for
// replies, to which nobody else can bind if it is exclusive. A client that declares
// nothing has its route queues, and need have no right to the exchange.
func (c *Client) reaches(d topology.Destination) bool {
	return (d.ToExchange() || d.ServerNamed()) && c.cfg.Declare != DeclareNothing
}

// straightTo is the way to a destination without a delay and past the strategy.
func straightTo(d topology.Destination) *topology.Route {
	if d.ToExchange() {
		return &topology.Route{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Mandatory: true}
	}
	return &topology.Route{RoutingKey: d.Queue, Queue: d.Queue, Mandatory: true}
}

// milliOf is an instant as a header has it, 0 for none.
func milliOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// headers is the table that goes over the wire, until recycle.
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

// tellOffset is the difference between clocks from which on a message tells it. The store
// corrects for no less.
const tellOffset = 20 * time.Millisecond

// stamp returns the instant at which a message says it was sent. If the clock of its due instant is
// behind this process's, it goes by that clock: this process's may be the wrong one, and would
// make the message late. If it is ahead, a header tells by how much.
func stamp(now time.Time, offset time.Duration) time.Time {
	if offset <= -tellOffset {
		return now.Add(offset)
	}
	return now
}

// usualFrame is RabbitMQ's frame_max, into which whatever checkHeaders takes fits.
const usualFrame = 128 << 10

// checkFrame refuses a message whose headers do not fit into a frame of a connection
// to a broker with a smaller frame_max, which would end that connection.
func checkFrame(most int, p *prepared, ofRoute amqp.Table) error {
	if most == 0 || most >= usualFrame {
		return nil
	}
	headers := p.headers(ofRoute)
	defer recycle(headers)
	m := table.Measure{Size: 128} // the frame itself, an instant, and properties of a fixed length
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

// checkPriority asks whether a message may go its way with its priority. That of
// one which a consumer sends on is lowered: its sender is not here to be told.
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

// sizes remembers the largest body that the broker takes, where that is less
// than Config.MaxBody. The broker tells it only by closing the channel that all
// senders share, so it is not asked again for each message, but once in a while:
// its max_message_size may have been raised.
type sizes struct{ last atomic.Pointer[sizeLimitSeen] }

type sizeLimitSeen struct {
	limit int
	at    time.Time
}

// askAgain is how long a limit stands.
const askAgain = time.Minute

func (s *sizes) learn(limit int, now time.Time) { s.last.Store(&sizeLimitSeen{limit, now}) }

// check refuses a body over a limit that was learnt lately.
func (s *sizes) check(size int, now time.Time) error {
	if l := s.last.Load(); l != nil && size > l.limit && now.Sub(l.at) < askAgain {
		return brokerLimit(size, l.limit)
	}
	return nil
}

func brokerLimit(size, limit int) *MessageError {
	return &MessageError{"Body", fmt.Sprintf("%d bytes; the broker takes at most %d (its max_message_size): store the payload elsewhere and send a reference", size, limit)}
}
