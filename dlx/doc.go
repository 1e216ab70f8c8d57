// Package dlx delays messages by message TTL and dead-lettering on a stock
// RabbitMQ: the ttl strategy (one queue per declared delay) and the bucket
// strategy (any delay, in digits).
//
// The package is pure: it describes topology and routes and touches no broker.
package dlx
