package amqpx

import (
	"time"
)

// Stats is a snapshot of a client's state. It is taken without asking the broker, so it does not include messages
// that are waiting there. For those, use QueueInfo or the management API.
type Stats struct {
	// Publish and Consume describe the client's long-lived connections. Declare describes the connection for
	// declarations, which is opened when something has to be declared and closed after a minute without use.
	Publish ConnectionStats `json:"publish"`
	Consume ConnectionStats `json:"consume"`
	Declare ConnectionStats `json:"declare"`

	// Sending counts the messages whose Send, SendBatch or SendEach has been called and has not reported a result
	// yet. It includes the messages that consumers publish, such as retries and dead letters.
	Sending int `json:"sending"`
	// InFlight counts the messages that were written to the current connection and await their confirm.
	// Config.MaxInFlight bounds it, except for messages of Stuck queues.
	InFlight int `json:"in_flight"`
	// Stuck lists the queues that have confirmed nothing for at least a second although messages await their
	// confirms. A stuck queue delays only its own messages.
	Stuck []StuckQueue `json:"stuck,omitempty"`

	// Consumers describes the running calls to Consume, ordered by queue.
	Consumers []ConsumerStats `json:"consumers,omitempty"`

	// ClockBehind is when this process's clock was first seen to be at least two seconds behind the clocks of the
	// brokers and of the publishers. While it is set, consumers do not rely on this process's clock. It is zero
	// otherwise.
	ClockBehind time.Time `json:"clock_behind,omitzero"`

	// Closing is the time at which Close was called, or zero.
	Closing time.Time `json:"closing,omitzero"`
}

// ConnectionStats is the state of one connection.
type ConnectionStats struct {
	// State is the state of the connection: connecting (before the first connection), connected, blocked,
	// disconnected (the client is reconnecting) or closed. It is empty if there is no connection and none is
	// needed, which is the case for Consume before the first call to Consume, and for Declare most of the time.
	State State `json:"state,omitempty"`
	// Since is when State was entered. Failed attempts to reconnect do not change it.
	Since time.Time `json:"since,omitzero"`
	// Silent is when the broker stopped answering on an open connection. When a queue is stuck, the client tests
	// whether the broker still answers. If the broker stays silent, missed heartbeats may close the connection later.
	// Silent is zero while the broker answers.
	Silent time.Time `json:"silent,omitzero"`
	// Broker is the broker's product and version, such as "RabbitMQ 4.3.1". Address is the host and port of the
	// URL in use. Both are empty while there is no connection.
	Broker  string `json:"broker,omitempty"`
	Address string `json:"address,omitempty"`
	// Sessions counts the connections that have been established so far.
	Sessions uint64 `json:"sessions"`
	// Reason says why the broker blocks publishers, or why there is no connection. It never contains a password.
	Reason string `json:"reason,omitempty"`
	// Err is the error of the last attempt to connect, or the error that ended the connection. It is nil while
	// there is a connection.
	Err error `json:"-"`
}

// StuckQueue is a queue that does not confirm messages.
type StuckQueue struct {
	Queue string    `json:"queue"`
	Since time.Time `json:"since"` // the last confirm or, if no message awaited one then, the first publish after it
}

// ConsumerState is the state of a call to Consume.
type ConsumerState string

// States of a consumer.
const (
	ConsumerStarting  ConsumerState = "starting"  // the broker has not accepted the consumer yet
	ConsumerConsuming ConsumerState = "consuming" // the broker delivers messages to the consumer
	ConsumerDown      ConsumerState = "down"      // it was consuming, has stopped because of an error, and is being restarted
	ConsumerPaused    ConsumerState = "paused"    // it starts no handlers (see PauseConsuming)
	ConsumerEnding    ConsumerState = "ending"    // it waits for its running handlers
)

// ConsumerStats is the state of one call to Consume.
type ConsumerStats struct {
	Queue string        `json:"queue"`
	State ConsumerState `json:"state"`
	Since time.Time     `json:"since"`
	// Reason and Err say why the consumer is not consuming, or why handlers are blocked (see Blocked).
	Reason string `json:"reason,omitempty"`
	Err    error  `json:"-"`
	// Connection is the consumer's own connection. It is nil while the consumer uses the connection in Stats.Consume. A
	// consumer gets its own connection if consuming from its queue has made the broker close a connection.
	Connection *ConnectionStats `json:"connection,omitempty"`

	// Running counts the running handlers, at most Concurrency. It includes handlers that are still running for a
	// lost connection.
	Running     int `json:"running"`
	Concurrency int `json:"concurrency"`
	// Blocked counts the running handlers that wait because their database is unavailable. Only the handlers of
	// packages schedule, idempotency and pgxtx wait in this way, before their effect has begun. BlockedSince is when
	// the first of them began to wait.
	Blocked      int       `json:"blocked"`
	BlockedSince time.Time `json:"blocked_since,omitzero"`
	// Held counts the received messages that are not yet due.
	Held int `json:"held"`
	// Waiting counts the received messages that are waiting for a handler. Settling counts the messages whose
	// result is being settled, for example because their retry or dead letter is being published. On one
	// connection, Waiting, Settling, Held and Running add up to at most Prefetch, which grows with Held.
	Waiting  int `json:"waiting"`
	Settling int `json:"settling"`
	Prefetch int `json:"prefetch"`
	// Oldest is when the first of the Waiting messages became ready for a handler. It is zero if there is none, during
	// a pause, and while all of them wait until an earlier delivery of the same message has been handled. It shows the
	// lag that this process causes by too few or too slow handlers.
	Oldest time.Time `json:"oldest,omitzero"`
	// Begun is when the last handler was started. Lateness is how long that was after its message's due time
	// (Delivery.DueSince), by this process's clock, or 0 if the message had none. It shows the total lag: of the delay
	// queues, of other messages in the queue, and of this process.
	Begun    time.Time     `json:"begun,omitzero"`
	Lateness time.Duration `json:"lateness_ns"`
	// Returned counts the messages that arrived before their due time and were sent back to the broker for the
	// rest of their delay.
	Returned uint64 `json:"returned"`
	// Handled counts the handlers that have returned. Failed counts those that returned an error.
	Handled uint64 `json:"handled"`
	Failed  uint64 `json:"failed"`
}
