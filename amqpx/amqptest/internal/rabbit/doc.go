// Package rabbit is a model of RabbitMQ's rules: exchanges and routing, queues with TTLs, length limits and delivery
// limits, dead-lettering with x-death records, and consumers with their unsettled deliveries. It has no goroutines and
// does no I/O. Callers pass the time in, so simulating a year takes only as long as processing its events. The package
// does not handle AMQP frames and connections, which are in amqpx/amqptest.
//
// The types of this package are not safe for concurrent use.
//
//   - broker.go: the simulated version, the node, its clock and its events
//   - exchange.go, route.go: exchanges, bindings and routing
//   - queue.go, args.go: queues and their arguments
//   - message.go: messages and their x-death records
//   - publish.go: enqueueing, TTLs and limits
//   - lines.go: the order in which a queue delivers
//   - consume.go: channels, consumers, deliveries and their settlement
//   - deadletter.go: dead-lettering, and the destinations of waiting messages
//   - errors.go: errors with RabbitMQ's texts
package rabbit
