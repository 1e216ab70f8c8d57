package amqpx

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
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
	HeaderClockOffset = header.ClockOffset // "rabbitdelay-clock-offset", int64: ms by which the clock of the due instant is ahead of the publisher's; absent below 20, and where it is behind
	HeaderReturned    = header.Returned    // "rabbitdelay-returned", int64: how often consumers have sent it back as too early; absent for 0
	HeaderExpired     = header.Expired     // "rabbitdelay-expired", int64: on a renewed message, when it left its last delay queue by the broker's clock; absent if it left none
	HeaderDeliveries  = header.Delivered   // "rabbitdelay-deliveries", int64: on a renewed message, how often it was delivered before and may have been handled
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

// sendable returns those of the headers which hooks added that the message can have.
func (m *Message) sendable() amqp.Table {
	if len(m.added) == 0 || checkHeaders(m.own, m.Headers, m.added) == nil {
		return m.added
	}
	some := amqp.Table{}
	for _, name := range slices.Sorted(maps.Keys(m.added)) {
		some[name] = m.added[name]
		if checkHeaders(m.own, m.Headers, some) != nil {
			delete(some, name)
		}
	}
	return some
}

// normalPriority is the highest priority that does not overtake others in a quorum
// queue.
const normalPriority = 4

// priorityProblem refuses a priority with which a message would hold up all others
// in its delay queue. From RabbitMQ 4.0 on a quorum queue hands out messages with
// a priority above 4 first, and before 4.3 it expires only the one that is next: it
// looks at no other until that one is due, and then at those behind it that have the
// same priority. Before 4.0 it takes no notice of priorities. A version that cannot
// be read is refused too: a priority can be lowered, what is held up cannot be
// helped.
//
// broker is product and version, such as "RabbitMQ 4.0.5". Messages that pass
// through no delay queue need not be asked about.
func priorityProblem(broker string, s Strategy, priority uint8) error {
	if priority <= normalPriority {
		return nil
	}
	if v := wire.Version(broker); v.Before(4, 0, 0) || v.AtLeast(4, 3, 0) {
		return nil
	}
	quorum := func(q topology.Queue) bool { return q.IsDelay() && q.Type != topology.Classic }
	if !slices.ContainsFunc(s.Topology().Queues, quorum) {
		return nil
	}
	return &MessageError{"Priority", fmt.Sprintf("%d; expected 0 to %d: the delay queues are quorum queues, and on %s a message of a higher priority would hold up all others in its queue. Lower it, delay through classic queues, or upgrade the broker to 4.3",
		priority, normalPriority, broker)}
}
