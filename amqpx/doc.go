// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
// A Client publishes through a Strategy (package dlx: ttl and bucket; package
// plugin) with publisher confirms, reconnects for ever, and runs consumers in
// which the handler's error decides what happens to a message.
//
// The files, from the face down:
//
//   - client.go, close.go: the life of a Client; config.go: its configuration; errors.go: how calls fail
//   - send.go, batch.go, forward.go: a message on its way to its confirm; prepare.go: what
//     of it goes over the wire; message.go: a Message
//   - consumers.go: the consumers of several queues; json.go, bytype.go, middleware.go: handlers
//   - consume.go: a consumer; intake.go, room.go: what the broker hands out, and how much of it;
//     hold.go: what waits for its instant or a handler; process.go: a delivery from its handler to its end, from top to bottom;
//     retry.go: what its error asks for; delivery.go: what was received; pause.go: queues that are paused
//   - hooks.go, stats.go, health.go, slog.go: what a Client shows of itself; queueinfo.go: what it shows of a queue
//   - headers.go: the headers of a message
//   - inner.go: what package inspect has of a Client
//   - strategy.go, priority.go, sizes.go: what strategies and brokers allow
//
// Below it internal/wire keeps connections, internal/flow publishes on one, and
// internal/declare makes sure of what messages need on the broker. None of these knows the
// client; internal/header, internal/table and topology/live/wait are below them. Package
// inspect, for administrators, is above it.
package amqpx
