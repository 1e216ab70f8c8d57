package amqpx

import (
	"maps"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Headers that rabbitdelay writes. Consumers in other languages can rely on
// their names and types. Instants are milliseconds since the Unix epoch. Each
// header costs the client and the broker time, so a message carries only
// headers whose value is not known otherwise.
const (
	HeaderDue         = "rabbitdelay-due"         // int64, the due instant
	HeaderAttempt     = "rabbitdelay-attempt"     // int64, from 2 on; absent on the first delivery
	HeaderSnoozes     = "rabbitdelay-snoozes"     // int64, from 1 on; absent on a message that was never snoozed
	HeaderVersion     = "rabbitdelay-version"     // int64, of a task; absent without one
	HeaderCreated     = "rabbitdelay-created"     // int64, of a task: when its row was written; absent without one
	HeaderDestination = "rabbitdelay-destination" // string; exchange:routing-key for a message to an exchange; on other messages only on dead letters, the queue

	// On retries and the dead letter of a message that came through an
	// exchange: that exchange and its routing key.
	HeaderExchange   = "rabbitdelay-exchange"    // string
	HeaderRoutingKey = "rabbitdelay-routing-key" // string

	// Of a foreign publisher's message: its expiration, user-id, delivery-mode,
	// timestamp, CC and x-delay, as far as it has them, while it waits.
	HeaderCarried = "rabbitdelay-carried" // table

	HeaderQueue    = "rabbitdelay-queue"    // string, on dead letters: the queue whose consumer gave the message up
	HeaderRequeued = "rabbitdelay-requeued" // int64, when Client.Requeue sent it last; also on its retries and dead letters

	HeaderReason   = "rabbitdelay-reason"   // string, on dead letters: rejected, attempts, deliveries or unreadable
	HeaderError    = "rabbitdelay-error"    // string, on retries and dead letters: the last error's text, cut at 1 KiB
	HeaderAttempts = "rabbitdelay-attempts" // array of strings, likewise: "instant error" per attempt, the last 32
)

// Values of HeaderReason.
const (
	ReasonRejected   = "rejected"   // the handler returned Reject
	ReasonAttempts   = "attempts"   // MaxAttempts were used up
	ReasonDeliveries = "deliveries" // delivered more than 200 times without an outcome
	ReasonUnreadable = "unreadable" // its headers are beyond what amqp091 reads; HeaderRaw has them
)

const ownPrefix = "rabbitdelay-"

// routingHeader tells whether the broker would interpret the header, so that a
// message that is published again with it would take another way: before 4.0.1
// an old x-death makes the broker drop the message as a cycle, CC and BCC copy
// it past the delay, x-delay is the plugin's, by the x-opt-delivery ones RabbitMQ
// 4.4 delays in quorum queues, ours too, and NServiceBus delays again what it finds
// its own on.
func routingHeader(name string) bool {
	switch name {
	case "x-death", "x-delay", "CC", "BCC", headerDeliveries, "x-acquired-count",
		topology.HeaderInstant, "x-opt-delivery-delay", dlx.HeaderNServiceBusDelay:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// tables are empty ones that were used before. amqp091 encodes a table when it
// publishes and keeps nothing of it, so the next message may have it.
var tables = sync.Pool{New: func() any { return make(amqp.Table, 8) }}

// maxTable is the number of headers up to which a table is kept.
const maxTable = 32

// giveBack puts a table back that nobody needs any more.
func giveBack(t amqp.Table) {
	if len(t) > maxTable {
		return
	}
	clear(t)
	tables.Put(t)
}

// headers is the table that goes over the wire, until giveBack.
func (p *prepared) headers(ofRoute amqp.Table) amqp.Table {
	t := userHeaders(p.user)
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
	return t
}

// userHeaders copies what belongs to the user.
func userHeaders(h amqp.Table) amqp.Table {
	t, ok := tables.Get().(amqp.Table)
	if !ok {
		t = amqp.Table{}
	}
	for k, v := range h {
		if keptHeader(k) {
			t[k] = wide(v)
		}
	}
	return t
}

// keptHeader reports whether a message keeps a header of the user's.
func keptHeader(name string) bool { return !strings.HasPrefix(name, ownPrefix) && !routingHeader(name) }
