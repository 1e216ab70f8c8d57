// Package consume passes messages from queues to handlers, and settles them. It knows about subscriptions, due times,
// acknowledgements, retries and dead letters, but nothing about the client, its public types or its hooks: package
// amqpx passes in what it needs (Config, Settings), and implements the application's part of a delivery (Handling).
//
// The steps of a delivery, and their names:
//
//   - decode: a received message becomes a Delivery (delivery.go).
//   - check: decides when its handler may start. A message that is early by its lead is held. One that is far too early
//     is sent back for the rest of its delay (due.go, brokerclock.go; package duecheck has the rules). A redelivery
//     waits while an earlier delivery of the same message is handled (duplicates.go). Immediately before its handler,
//     checkHistory stops messages that cannot be read, that exceeded the broker's consumer timeout or that were
//     delivered too often.
//   - buffer: the delivery waits for its start time and for a slot (buffer.go), and the prefetch grows with the number
//     of held messages (prefetch.go).
//   - handle: its handler runs in a slot (handle.go).
//   - disposition: determines what the handler's error requests (disposition.go, errors.go).
//   - settle: the disposition becomes an Outcome (settle.go). The message is acknowledged, requeued, or replaced by
//     another one, which is a retry, a dead letter or the rest of its delay, and is then acknowledged (replacement.go).
//
// A message that returns to its queue too often is renewed, which means that it is replaced by a copy without being
// handled (renew.go). overrun.go determines which deliveries exceeded the broker's consumer timeout.
//
// Consumers holds all consumers of a client (consumers.go, pause.go, stats.go). A Consumer consumes one queue until it
// is stopped (consumer.go), on one connection after another (connection.go). A subscription is its consumer on the
// broker, with a channel (subscription.go), and one goroutine receives its deliveries and starts handlers (intake.go).
package consume
