package amqpx

import (
	"time"
)

// Stats is what a client knows of itself at one instant. The broker is not asked,
// so it says nothing of messages that wait there: QueueInfo and the management
// API do.
type Stats struct {
	// Publish and Consume are the client's lasting connections. Declare is the one
	// for declarations, which exists only while there is something to declare.
	Publish ConnectionStats `json:"publish"`
	Consume ConnectionStats `json:"consume"`
	Declare ConnectionStats `json:"declare"`

	// Sending counts messages between the call of a Send, SendBatch or SendEach
	// and its outcome, those of consumers (retries, dead letters) included.
	Sending int `json:"sending"`
	// InFlight counts those of them that were written to the current connection
	// and await their confirm. Config.MaxInFlight bounds it, but for those into Stuck
	// queues.
	InFlight int `json:"in_flight"`
	// Stuck are queues that have confirmed nothing for a second or more although
	// messages wait for it. Only their own messages wait.
	Stuck []StuckQueue `json:"stuck,omitempty"`

	// Consumers are the calls of Consume that run, by queue.
	Consumers []ConsumerStats `json:"consumers,omitempty"`

	// ClockBehind is since when this process's clock is seen behind those of the brokers
	// and of the publishers, by two seconds or more; zero while it is not. Consumers then
	// do not go by it.
	ClockBehind time.Time `json:"clock_behind,omitzero"`

	// Closing is when Close was called; zero before.
	Closing time.Time `json:"closing,omitzero"`
}

// ConnectionStats is the state of one connection.
type ConnectionStats struct {
	// State is connecting (before the first connection), connected, blocked,
	// disconnected (the client is connecting again) or closed; empty if there is no
	// connection and none is wanted: before the first Consume, and of Declare most
	// of the time.
	State State `json:"state,omitempty"`
	// Since is when that state began. Failed attempts to connect again do not
	// change it.
	Since time.Time `json:"since,omitzero"`
	// Silent is since when the broker has not answered on a connection that stands. The
	// client asks when a queue is stuck; the loss of the connection, by its heartbeats,
	// may follow. Zero while it answers.
	Silent time.Time `json:"silent,omitzero"`
	// Broker is the product and version, such as "RabbitMQ 4.3.1", and Address the
	// host and port of the URL, of a connection that stands.
	Broker  string `json:"broker,omitempty"`
	Address string `json:"address,omitempty"`
	// Sessions counts the connections made so far.
	Sessions uint64 `json:"sessions"`
	// Reason is why the broker blocks or why there is no connection. It never
	// contains a password.
	Reason string `json:"reason,omitempty"`
	// Err is the error of the last attempt to connect, or the end of the
	// connection, while there is none.
	Err error `json:"-"`
}

// StuckQueue is a queue that does not confirm.
type StuckQueue struct {
	Queue string    `json:"queue"`
	Since time.Time `json:"since"` // the last confirm, or the first message that waits for one
}

// ConsumerState is what a call of Consume is doing.
type ConsumerState string

// States of a consumer.
const (
	ConsumerStarting  ConsumerState = "starting"  // it has not consumed yet
	ConsumerConsuming ConsumerState = "consuming" // the broker delivers to it
	ConsumerDown      ConsumerState = "down"      // it did consume, and begins again
	ConsumerPaused    ConsumerState = "paused"    // it begins no handlers, see PauseConsuming
	ConsumerEnding    ConsumerState = "ending"    // handlers finish
)

// ConsumerStats is one call of Consume.
type ConsumerStats struct {
	Queue string        `json:"queue"`
	State ConsumerState `json:"state"`
	Since time.Time     `json:"since"`
	// Reason and Err are why a consumer is not consuming.
	Reason string `json:"reason,omitempty"`
	Err    error  `json:"-"`
	// Connection is the consumer's own connection; nil while it uses Stats.Consume. A consumer has one from
	// the moment at which the broker ended a connection because its queue was consumed.
	Connection *ConnectionStats `json:"connection,omitempty"`

	// Running counts handlers that run, of at most Concurrency. It includes those
	// of a connection that was lost.
	Running     int `json:"running"`
	Concurrency int `json:"concurrency"`
	// Held counts messages that the broker has handed out and whose instant is to come.
	Held int `json:"held"`
	// Waiting counts messages that could begin and that no handler has begun; Settling
	// those whose retry or dead letter is being published. Together with Held and Running
	// they are at most Prefetch on one connection, which grows with Held.
	Waiting  int `json:"waiting"`
	Settling int `json:"settling"`
	Prefetch int `json:"prefetch"`
	// Oldest is since when the first of Waiting could have begun; zero if there is
	// none, in a pause, and while all of them wait for the end of an earlier delivery of the
	// same message. It is the lag that is due to this process: too few handlers, or slow ones.
	Oldest time.Time `json:"oldest,omitzero"`
	// Begun is when the last handler began, and Lateness how long after its
	// message's due instant, by this process's clock. It is 0 if that message had
	// no due instant. It is the lag of the whole way: delay queues, a queue that
	// was full of others, and this process.
	Begun    time.Time     `json:"begun,omitzero"`
	Lateness time.Duration `json:"lateness_ns"`
	// Returned counts messages that came before their instant and were sent back to the
	// broker for the rest.
	Returned uint64 `json:"returned"`
	// Handled counts the handlers that have returned, Failed those of them with
	// an error.
	Handled uint64 `json:"handled"`
	Failed  uint64 `json:"failed"`
}
