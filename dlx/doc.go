// Package dlx delays messages by message TTL and dead-lettering on a stock
// RabbitMQ: the ttl strategy (one queue per declared delay), the bucket strategy
// (any delay, in digits), the levels strategy (likewise, on the queues that
// NServiceBus or Celery has) and the native strategy (any delay, by an instant for
// which RabbitMQ 4.4 and later hold a message).
//
// The package is pure: it describes topology and routes and touches no broker.
package dlx
