package amqpx

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Strategy turns a delay into a place to publish. It does no I/O, so that the same
// configuration has the same answer in every process. Packages dlx and plugin
// implement it without importing this package.
type Strategy interface {
	// Name is ttl, bucket, nservicebus, celery, plugin, native or auto.
	Name() string
	// Prefix begins the names of all broker objects, also of those that the client
	// makes: route queues, the lock.
	Prefix() string
	// Topology is what must exist on the broker, the delivery exchange and the
	// parked queue included.
	Topology() topology.Topology
	// Bindings connect the delivery exchange with one destination. They assume
	// that the destination's target queue exists.
	Bindings(dest topology.Destination) []topology.Binding
	// Route returns where to publish a message that is due after delay. The
	// route's own delay is at least delay; with a tolerance it may be up to
	// delay + tolerance if that saves hops. A delay of 0 goes straight to the
	// destination. Errors are *topology.DelayError or *topology.KeyError.
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	// MaxDelay is the longest delay that Route accepts.
	MaxDelay() time.Duration
}

// Canary is a Strategy whose routes may have an InstantHeader. A broker that
// ignores the header would deliver their messages at once, so a Client sends none
// of them on a connection before messages of its own have proven, on that
// connection, that they wait.
type Canary interface {
	// Canary returns the bindings that lead to a queue, which the client declares for
	// it, and a route to there through each queue in which messages wait. Without
	// routes there is nothing to prove.
	Canary(queue string) ([]topology.Binding, []topology.Route)
}
