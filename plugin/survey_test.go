package plugin_test

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

func TestSurvey(t *testing.T) {
	delayed := func(kind string, held int64, known bool) observed.Exchange {
		return observed.Exchange{Kind: "x-delayed-message", Arguments: map[string]any{"x-delayed-type": kind}, Held: held, HeldKnown: known}
	}
	list := plugin.Survey(observed.Broker{
		Exchanges: map[string]observed.Exchange{
			"orders": delayed("topic", 7, true), "delay.plugin": delayed("topic", 0, true), "blind": delayed("", 0, false),
			"amq.topic": {Kind: "topic"},
		},
		Bindings: []topology.Binding{
			{Exchange: "orders", Queue: "expire", RoutingKey: "order.#"},
			{Exchange: "orders", ToExchange: "audit"},
			{Exchange: "amq.topic", ToExchange: "orders", RoutingKey: "a"},
			{Exchange: "amq.topic", ToExchange: "orders", RoutingKey: "b"},
		},
	}, "delay")
	if len(list) != 3 || list[0].Name != "blind" || list[1].Name != "delay.plugin" || list[2].Name != "orders" {
		t.Fatalf("%+v", list)
	}
	if orders := list[2]; *orders.Waiting != 7 || orders.Type != "topic" || len(orders.Bound) != 2 || len(orders.From) != 1 || orders.Own {
		t.Errorf("%+v", orders)
	}
	if !list[1].Own || list[0].Waiting != nil {
		t.Errorf("%+v", list[:2])
	}
	way := strings.Join(plugin.InTheWay(list), "\n")
	for _, want := range []string{
		"table: 7.",
		"how many messages wait: 1",
		`"orders": RabbitMQ 4.3 has no type x-delayed-message; declare it again as topic`,
		`"delay.plugin" of rabbitdelay's strategy`,
	} {
		if !strings.Contains(way, want) {
			t.Errorf("%q is missing in\n%s", want, way)
		}
	}
	if way := plugin.InTheWay(nil); way == nil || len(way) != 0 {
		t.Errorf("nothing is in the way, and it says %q", way)
	}
}
