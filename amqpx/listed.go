package amqpx

import (
	"github.com/rabbitdelay/rabbitdelay/internal/near"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// listed refuses, with DeclareListed, what is not in Config.Destinations: neither
// a destination there nor the dead-letter queue of one.
func (c *Client) listed(dest topology.Destination) error {
	if c.cfg.Declare != DeclareListed {
		return nil
	}
	var names []string
	known := false
	for _, d := range c.cfg.Destinations {
		names = append(names, destinationName(d))
		known = known || d.Queue == dest.Queue && d.Exchange == dest.Exchange && d.RoutingKey == dest.RoutingKey
		if !d.ToExchange() {
			names = append(names, d.DeadLetterQueue())
			known = known || d.DeadLetterQueue() == dest.Queue
		}
	}
	if known {
		return nil
	}
	return &topology.DestinationError{Destination: dest,
		Reason: "is not one of the destinations in the configuration, and no other may be used (declare: listed)" + near.Hint(destinationName(dest), names)}
}
