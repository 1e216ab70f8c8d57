// Package rabbit holds RabbitMQ's rules as a model: exchanges and routing,
// queues with TTLs, length limits and delivery limits, dead letters and the
// record of them, consumers and what they hold. It has no goroutines and does no
// I/O; callers pass the time in, so a year takes as long as its events. It knows
// nothing of AMQP's frames and connections: amqpx/amqptest has those.
//
// Nothing here is safe for concurrent use.
//
//   - broker.go: the node, its clock and its events; version.go: whose rules apply
//   - exchange.go, route.go, match.go: exchanges, bindings and routing
//   - queue.go, args.go, queueargs.go: queues and their arguments
//   - message.go: a message and the record of its deaths
//   - publish.go, native.go: the way into a queue, TTLs and limits
//   - lines.go: the order in which a queue delivers
//   - consume.go: channels, consumers, deliveries and their end
//   - deadletter.go: the way out of a queue; errors.go: refusals in RabbitMQ's words
package rabbit
