// Package rabbit holds RabbitMQ's rules as a model: exchanges and routing,
// queues with TTLs, length limits and delivery limits, dead letters and the
// record of them, consumers and what they hold. It has no goroutines and does no
// I/O, and the time is handed in: a year passes in the time that its events
// take. amqpx/amqptest speaks AMQP 0-9-1 in front of it.
//
// Nothing here is safe for concurrent use.
package rabbit
