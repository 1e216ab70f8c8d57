// Package dlx delays messages by message TTL and dead-lettering on a stock
// RabbitMQ: the ttl strategy (one queue per declared delay), the bucket strategy
// (any delay, in digits), the levels strategy (likewise, on the queues that
// NServiceBus or Celery has) and the native strategy (any delay, by an instant for
// which RabbitMQ 4.4 and later hold a message).
//
// A strategy is a file with its configuration, topology and routes (bucket.go, ttl.go,
// levels.go, native.go). They share number systems and the routes by them (layout.go), and names
// and the way into a queue (entry.go); parse.go reads a destination back from a routing key.
//
// The package is pure: it describes topology and routes and touches no broker.
package dlx
