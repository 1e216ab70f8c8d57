// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
// A Client publishes through a Strategy (package dlx: ttl and bucket; package
// plugin) with publisher confirms, reconnects for ever, and runs consumers in
// which the handler's error decides what happens to a message.
//
// The files, from the face down:
//
//   - client.go, close.go: the life of a Client; config.go: its configuration, and what a strategy is;
//     errors.go: how calls fail
//   - message.go: a Message; send.go, batch.go: on its way to its confirm; prepare.go, headers.go:
//     what of it goes over the wire, and what strategies and brokers allow
//   - consume.go: consumers; consume_options.go: their options; consumer.go: the state of one; pause.go:
//     queues that are paused; intake.go: what the broker hands out, and how much of it; hold.go: what waits
//     for its instant or a handler
//   - delivery.go: what was received; handlers.go: handlers and their middleware; process.go: a
//     delivery from its handler to its end; verdict.go: what the handler's error decides; settle.go,
//     successor.go: the acknowledgement, and the message in its place; retry.go: what errors ask for
//   - hooks.go, stats.go, health.go, slog.go: what a Client shows of itself
//   - inner.go: what package inspect has of a Client
//
// Below it internal/wire keeps connections, internal/flow publishes on one, and
// internal/declare makes sure of what messages need on the broker. None of these knows the
// client; internal/header, internal/table and topology/live/wait are below them. Package
// inspect, for administrators, is above it.
package amqpx
