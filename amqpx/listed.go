package amqpx

import (
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// listed refuses, with DeclareListed, what is not in Config.Destinations: neither
// a destination there nor the dead-letter queue of one. A queue that the broker has named
// cannot be listed, and nobody creates it by mistake.
func (c *Client) listed(dest topology.Destination) error { return c.cfg.Listed(dest) }

// Listed is that of the client's configuration.
func (c *Client) Listed(dest topology.Destination) error { return c.cfg.Listed(dest) }

// Listed returns the error with which a client of this configuration refuses a
// destination that DeclareListed leaves out; nil with another Declare.
func (c Config) Listed(dest topology.Destination) error {
	if c.Declare != DeclareListed || dest.ServerNamed() {
		return nil
	}
	var names []string
	known := false
	for _, d := range c.Destinations {
		names = append(names, d.String())
		known = known || d.Queue == dest.Queue && d.Exchange == dest.Exchange && d.RoutingKey == dest.RoutingKey
		if !d.ToExchange() {
			known = known || d.DeadLetterQueue() == dest.Queue
		}
	}
	if known {
		return nil
	}
	return &topology.DestinationError{Destination: dest,
		Reason: fmt.Sprintf("is not a destination of the configuration, and only those may be used (declare: listed): %s", some(names))}
}

// maxNamed is how many destinations an error names.
const maxNamed = 10

func some(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
