// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
// A Client publishes through a Strategy (package dlx: ttl and bucket; package plugin) with publisher confirms,
// reconnects without end, and runs consumers in which the handler's error decides what happens to a message.
//
// The files, from the public API down:
//
//   - client.go, close.go: opening and closing a Client
//   - config.go: its configuration, and the Strategy interface
//   - errors.go: the errors of all calls
//   - message.go: Message
//   - send.go, batch.go: publishing messages and waiting for their confirms
//   - prepare.go, headers.go: checking messages and converting them to their wire form
//   - consume.go, consume_options.go: Consume and its options
//   - consumer.go: the state of one consumer
//   - pause.go: pausing the consumers of a queue
//   - intake.go: receiving messages, and the prefetch
//   - hold.go: the buffer of messages that wait for their due time or for a handler
//   - brokerclock.go: asking the broker for its time
//   - suspect.go: the connections on which consumers start
//   - renew.go: replacing messages that come close to their queue's delivery limit
//   - delivery.go: Delivery
//   - handlers.go: handlers and middleware
//   - process.go: running the handler on a delivery
//   - verdict.go, retry.go: what the handler's error decides, and the errors that ask for something
//   - overrun.go: deliveries that ran past the broker's consumer timeout
//   - settle.go, successor.go: the acknowledgement, and the message that replaces the received one
//   - hooks.go, stats.go, health.go, slog.go: observing a Client
//   - inner.go: the part of a Client that package inspect uses
//
// Package internal/wire keeps connections, internal/flow publishes on one, and internal/declare makes sure that
// the objects that messages need exist on the broker. None of these packages imports amqpx. They build on
// internal/header, internal/table and topology/live/wait. Package inspect, for administrators, builds on amqpx.
package amqpx
