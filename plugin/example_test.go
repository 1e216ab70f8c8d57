package plugin_test

import (
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// What live.Management inspects tells which exchanges a broker must lose before it
// becomes RabbitMQ 4.3.
func ExampleSurvey() {
	found := observed.Broker{
		Exchanges: map[string]observed.Exchange{"orders": {
			Kind: "x-delayed-message", Arguments: map[string]any{argument.DelayedType: "topic"}, Held: 1200, HeldKnown: true,
		}},
		Bindings: []topology.Binding{{Exchange: "orders", Queue: "orders.expire", RoutingKey: "order.#"}},
	}
	for _, d := range plugin.Survey(found, topology.DefaultPrefix) {
		fmt.Println(d.Name, d.Type, *d.Waiting, d.Bound[0].Queue)
	}
	// Output: orders topic 1200 orders.expire
}
