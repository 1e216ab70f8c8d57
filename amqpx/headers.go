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

// Names of the headers that applications read. The headers of the first group may be on any message, those of the
// second only on retries and dead letters. Consumers in other languages can rely on these names and on the types.
// docs/wire.md describes all headers that rabbitdelay writes. Times are milliseconds since the Unix epoch.
const (
	HeaderDue         = header.Due         // "rabbitdelay-due", int64: the due time
	HeaderAttempt     = header.Attempt     // "rabbitdelay-attempt", int64: from 2 on, and on dead letters the last attempt; absent on the first delivery
	HeaderVersion     = header.Version     // "rabbitdelay-version", int64: the task's version; absent without a task
	HeaderDestination = header.Destination // "rabbitdelay-destination", string: exchange:routing-key for a message to an exchange; for other messages the queue, on dead letters only

	HeaderQueue    = header.Queue    // "rabbitdelay-queue", string, on dead letters: the queue whose consumer dead-lettered the message
	HeaderReason   = header.Reason   // "rabbitdelay-reason", string, on dead letters: rejected, attempts, deliveries or unreadable (see package inspect)
	HeaderError    = header.Error    // "rabbitdelay-error", string, on retries and dead letters: the last error's text, cut at 1 KiB
	HeaderAttempts = header.Attempts // "rabbitdelay-attempts", array of strings, on retries and dead letters: "time error" for each of the last 32 attempts
)

// tables holds empty tables for reuse. amqp091 encodes a table when it publishes and keeps no reference to it, so
// the next message can use the same table.
var tables = sync.Pool{New: func() any { return make(amqp.Table, 8) }}

// maxTable is the number of headers up to which a table is kept for reuse.
const maxTable = 32

// recycle empties a table that is no longer needed, and makes it available for reuse unless it is large (maxTable).
func recycle(t amqp.Table) {
	if len(t) > maxTable {
		return
	}
	clear(t)
	tables.Put(t)
}

// userHeaders copies the headers that users may set (header.Kept) from all tables into one, and converts each int to an
// int64 (table.Wide). If a name occurs more than once, the last value wins.
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

// maxHeaderCount is the maximum number of user headers on a message. amqp091 cannot read a table with more than 8,192
// elements, and rabbitdelay and the broker add headers of their own.
const maxHeaderCount = 8000

// checkHeaders rejects headers that would end a connection: the publisher's, because the broker refuses them, or the
// consumer's, because amqp091 cannot read them. The parameter own contains rabbitdelay's own headers.
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
	m.Most = header.MaxOfAll // headers carried for another publisher may be long
	for name, v := range own {
		m.Header(name, v)
	}
	if m.Err != nil {
		return &MessageError{"Headers", m.Err.Error()}
	}
	return nil
}

// sendable returns the headers that hooks have added, without those that would make the message invalid.
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

// normalPriority is the highest priority that a quorum queue does not deliver ahead of other messages.
const normalPriority = 4

// priorityProblem rejects a priority that would make a message block all other messages in its delay queue. From
// RabbitMQ 4.0 on, a quorum queue delivers messages with a priority above 4 first. Before 4.3 only the message that is
// next in that order can expire. The messages behind it cannot expire until it is due. Before 4.0 quorum queues ignore
// priorities. If the version cannot be parsed, the priority is rejected as well, because a sender can lower a priority,
// whereas a blocked delay queue cannot be repaired.
//
// The parameter broker is the product and version, such as "RabbitMQ 4.0.5". The caller need not check messages that
// pass through no delay queue.
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
