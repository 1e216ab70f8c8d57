package plugin_test

import (
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The plugin's exchange keeps a message for its delay, and then routes it to the exchange delay.deliver.
func ExampleNew() {
	s, err := plugin.New(plugin.Config{})
	if err != nil {
		log.Fatal(err)
	}
	route, err := s.Route(topology.Destination{Queue: "orders.expire"}, time.Hour, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(route.Exchange, route.RoutingKey, route.Headers[plugin.HeaderDelay])
	// Output: delay.plugin plugin.orders.expire 3600000
}
