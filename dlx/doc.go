// Package dlx delays messages by message TTL and dead-lettering on a stock RabbitMQ. It has four strategies:
//
//   - ttl has one queue per declared delay.
//   - bucket supports any delay, which it writes as digits.
//   - levels supports any delay in the same way, on the queues of NServiceBus or Celery.
//   - native supports any delay. It writes the delivery time into a header, and RabbitMQ 4.4 and later hold the message
//     until that time.
//
// Each strategy has a file with its configuration, topology and routes (bucket.go, ttl.go, levels.go, native.go). The
// strategies share the number systems with their routes (layout.go), and the naming and entry exchanges of queues
// (entry.go). The file parse.go extracts the destination from a routing key.
//
// The package does no I/O. It only computes topologies and routes.
package dlx
