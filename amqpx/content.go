package amqpx

import (
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// content is the published form of a message, without the headers that depend on its due time and its route.
type content struct {
	pub       amqp.Publishing // its Headers are not set
	user, own amqp.Table      // the user's headers, and rabbitdelay's own on a message that is passed on
	added     amqp.Table      // headers that hooks added
	attempt   int64
	version   int64 // of the task; 0 for none
	created   int64 // when the task's row was written, in epoch ms; 0 for none
	lowers    bool  // lower a priority that the delay queues do not support, instead of refusing the message
}

// contentOf returns the content of a message that is sent now.
func contentOf(m *Message, now time.Time) content {
	id := m.ID
	if id == "" {
		id = newID(now)
	}
	c := content{
		user: m.Headers, own: m.own, added: m.sendable(),
		attempt: int64(max(m.Attempt, 1)), version: m.Version, created: milliOf(m.Created), lowers: m.own != nil && m.as == nil,
		pub: amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Timestamp: stamp(now, m.ClockOffset), UserId: m.userID,
			Body:        m.Body,
			ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, Type: m.Type,
			CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, AppId: m.AppID, Priority: m.Priority,
		},
	}
	if !m.sent.IsZero() {
		c.pub.Timestamp = m.sent
	}
	if m.as != nil {
		m.as.Apply(&c.pub)
	}
	return c
}

// milliOf converts a time to epoch milliseconds, the unit of headers. It returns 0 for the zero time.
func milliOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// headers returns the message's headers with those of its route. The caller passes the table to recycle when it is no
// longer needed.
func (p *prepared) headers(ofRoute amqp.Table) amqp.Table {
	t := userHeaders(p.user, p.added)
	maps.Copy(t, p.own)
	maps.Copy(t, ofRoute)
	p.timing.addTo(t)
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
		t[header.Created] = p.created
	}
	if p.from == fromEpoch && p.routing != straight {
		t[header.Absolute] = true
	}
	return t
}

// usualFrame is RabbitMQ's default frame_max. Any headers that checkHeaders accepts fit into it.
const usualFrame = 128 << 10

// checkFrame rejects a message whose headers and properties do not fit into a frame of this connection, which has at
// most the given number of bytes (0 if unlimited). On a broker with a frame_max below the default, such a message would
// end the connection.
func checkFrame(most int, p *prepared, ofRoute amqp.Table) error {
	if most == 0 || most >= usualFrame {
		return nil
	}
	headers := p.headers(ofRoute)
	defer recycle(headers)
	m := table.Measure{Size: 128} // allows for the frame itself, an InstantHeader, and properties of fixed length
	m.Table(headers, 0)
	x := &p.pub
	for _, s := range []string{x.ContentType, x.ContentEncoding, x.CorrelationId, x.ReplyTo, x.Expiration, x.MessageId, x.Type, x.UserId, x.AppId} {
		m.Add(len(s))
	}
	if m.Size > most {
		return &MessageError{"Headers", fmt.Sprintf("too large for a frame of this broker (its frame_max is %d bytes): large data belongs in the body", most)}
	}
	return nil
}

// checkPriority rejects a priority that the delay queues do not support. For a message that a consumer publishes in
// place of a received one, checkPriority lowers the priority instead, because the original sender cannot be notified.
func (c *Client) checkPriority(sess *session, p *prepared, route *topology.Route) error {
	if p.routing != delayed || route.Hops == 0 {
		return nil
	}
	err := priorityProblem(sess.Broker, c.strategy, p.pub.Priority)
	if err != nil && p.lowers {
		p.pub.Priority, err = normalPriority, nil
	}
	return err
}
