package drain

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The routing key of a message from the strategy plugin contains its destination.
func TestDestinationOf(t *testing.T) {
	for key, want := range map[string]topology.Destination{
		"plugin.orders.expire":              {Queue: "orders.expire"},
		"plugin.delay.route.events:order.a": {Exchange: "events", RoutingKey: "order.a"},
	} {
		if got, ok := destinationOf("delay", key); !ok || got != want {
			t.Errorf("destinationOf(%q) = %+v, %t, want %+v, true", key, got, ok, want)
		}
	}
	if d, ok := destinationOf("delay", "orders.expire"); ok {
		t.Errorf("destinationOf of another program's key = %+v, true, want false", d)
	}
}
