// Package rabbit holds RabbitMQ's rules as a model: exchanges and routing,
// queues with TTLs, length limits and delivery limits, dead letters and the
// record of them, consumers and what they hold. It has no goroutines and does no
// I/O; callers pass the time in, so a year takes as long as its events. It knows
// nothing of AMQP's frames and connections: amqpx/amqptest has those.
//
// Nothing here is safe for concurrent use.
//
//   - broker.go: the version whose rules apply, the node, its clock and its events
//   - exchange.go, route.go: exchanges, bindings and routing
//   - queue.go, args.go: queues and their arguments
//   - message.go: a message and the record of its deaths
//   - publish.go: the way into a queue, TTLs and limits
//   - lines.go: the order in which a queue delivers
//   - consume.go: channels, consumers, deliveries and their end
//   - deadletter.go: the way out of a queue, and where it ends; errors.go: refusals in RabbitMQ's words
package rabbit
