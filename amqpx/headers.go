package amqpx

import (
	"fmt"
	"maps"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
)

// Headers that rabbitdelay writes. Consumers in other languages can rely on
// their names and types. Instants are milliseconds since the Unix epoch. Each
// header costs the client and the broker time, so a message carries only
// headers whose value is not known otherwise.
const (
	HeaderDue         = header.Due         // "rabbitdelay-due", int64: the due instant
	HeaderAttempt     = header.Attempt     // "rabbitdelay-attempt", int64: from 2 on; absent on the first delivery
	HeaderSnoozes     = header.Snoozes     // "rabbitdelay-snoozes", int64: from 1 on; absent on a message that was never snoozed
	HeaderLead        = header.Lead        // "rabbitdelay-lead", int64: ms before the due instant at which the message may reach its consumer, which holds it; absent for 0
	HeaderAbsolute    = header.Absolute    // "rabbitdelay-absolute", bool: true where the publisher asked for an instant; absent for a delay
	HeaderClockOffset = header.ClockOffset // "rabbitdelay-clock-offset", int64: ms by which the clock of the due instant is ahead of the publisher's; absent below 20
	HeaderReturned    = header.Returned    // "rabbitdelay-returned", int64: how often consumers have sent it back as too early; absent for 0
	HeaderVersion     = header.Version     // "rabbitdelay-version", int64: of a task; absent without one
	HeaderCreated     = header.Created     // "rabbitdelay-created", int64: when a task's row was written; absent without one
	HeaderDestination = header.Destination // "rabbitdelay-destination", string: exchange:routing-key for a message to an exchange; on other messages only on dead letters, the queue

	// On retries and the dead letter of a message that came through an
	// exchange: that exchange and its routing key.
	HeaderExchange   = header.Exchange   // "rabbitdelay-exchange", string
	HeaderRoutingKey = header.RoutingKey // "rabbitdelay-routing-key", string

	// Of a foreign publisher's message: its expiration, user-id, delivery-mode,
	// timestamp, CC and x-delay, as far as it has them, while it waits.
	HeaderCarried = header.Carried // "rabbitdelay-carried", table

	HeaderQueue    = header.Queue    // "rabbitdelay-queue", string, on dead letters: the queue whose consumer gave the message up
	HeaderRequeued = header.Requeued // "rabbitdelay-requeued", int64: when inspect.Requeue sent it last; also on its retries and dead letters

	HeaderReason   = header.Reason   // "rabbitdelay-reason", string, on dead letters: rejected, attempts, deliveries or unreadable, see package inspect
	HeaderError    = header.Error    // "rabbitdelay-error", string, on retries and dead letters: the last error's text, cut at 1 KiB
	HeaderAttempts = header.Attempts // "rabbitdelay-attempts", array of strings, likewise: "instant error" per attempt, the last 32

	// Of a message that amqp091 cannot read: its headers are nested too deep, too many, or
	// longer than a frame. It has them on its way from the connection to its consumer,
	// which dead-letters it.
	HeaderUnreadable = header.Unreadable // "rabbitdelay-unreadable", string: why
	// HeaderRaw has the headers as the broker sent them, encoded, and cut off where they
	// do not fit into a frame; on the dead letter too.
	HeaderRaw = header.Raw // "rabbitdelay-raw-headers", bytes
)

// tables are empty ones that were used before. amqp091 encodes a table when it
// publishes and keeps nothing of it, so the next message may have it.
var tables = sync.Pool{New: func() any { return make(amqp.Table, 8) }}

// maxTable is the number of headers up to which a table is kept.
const maxTable = 32

// recycle puts a table back that nobody needs any more.
func recycle(t amqp.Table) {
	if len(t) > maxTable {
		return
	}
	clear(t)
	tables.Put(t)
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
	if p.offset.Abs() >= tellOffset {
		t[HeaderClockOffset] = floorMilli(p.offset)
	}
	if p.lead > 0 {
		t[HeaderLead] = p.lead.Milliseconds()
	}
	return t
}

// tellOffset is the difference between clocks from which on a message has it. The store
// corrects for no less.
const tellOffset = 20 * time.Millisecond

// userHeaders copies what belongs to the user, the last of a name.
func userHeaders(all ...amqp.Table) amqp.Table {
	t, ok := tables.Get().(amqp.Table)
	if !ok {
		t = amqp.Table{}
	}
	for _, h := range all {
		for k, v := range h {
			if header.Kept(k) {
				t[k] = table.Wide(v)
			}
		}
	}
	return t
}

// maxHeaderCount leaves room for those that rabbitdelay and the broker add.
const maxHeaderCount = 8000

// checkHeaders refuses headers of the user and of rabbitdelay's own with which the
// broker would end the connection, or the consumer its own.
func checkHeaders(own amqp.Table, user ...amqp.Table) error {
	m := table.Measure{Most: header.MaxOfUser}
	count := 0
	for _, t := range user {
		for name, v := range t {
			if header.Kept(name) {
				count++
				m.Header(name, v)
			}
		}
	}
	if count > maxHeaderCount {
		m.Failf("%d headers; expected at most %d: large data belongs in the body", count, maxHeaderCount)
	}
	m.Most = header.MaxOfAll // what is carried for a foreign publisher may be long
	for name, v := range own {
		m.Header(name, v)
	}
	if m.Err != nil {
		return &MessageError{"Headers", m.Err.Error()}
	}
	return nil
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
