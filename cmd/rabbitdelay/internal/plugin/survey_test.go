package plugin

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestSurvey(t *testing.T) {
	exchange := func(kind string, held int64, known bool) plan.Exchange {
		return plan.Exchange{Kind: "x-delayed-message", Arguments: map[string]any{"x-delayed-type": kind}, Held: held, HeldKnown: known}
	}
	list := survey(plan.State{
		Exchanges: map[string]plan.Exchange{
			"orders": exchange("topic", 7, true), "delay.plugin": exchange("topic", 0, true), "blind": exchange("", 0, false),
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
		t.Fatalf(`got the exchanges %+v, want "blind", "delay.plugin" and "orders"`, list)
	}
	if orders := list[2]; *orders.Waiting != 7 || orders.Type != "topic" || len(orders.Bound) != 2 || len(orders.From) != 1 || orders.Own {
		t.Errorf("exchange orders: got %+v, want a topic exchange with 7 waiting messages, two bindings and one source", orders)
	}
	if !list[1].Own || list[0].Waiting != nil {
		t.Errorf("got the exchanges %+v, want blind without a count, and delay.plugin as rabbitdelay's own", list[:2])
	}
	way := strings.Join(inTheWay(list), "\n")
	for _, want := range []string{
		"table: 7.",
		"does not report the number of waiting messages: 1",
		`"orders": RabbitMQ 4.3 has no type x-delayed-message; when no more messages wait in it, declare it again as topic`,
		`"delay.plugin" belongs to rabbitdelay's plugin strategy`,
	} {
		if !strings.Contains(way, want) {
			t.Errorf("got the obstacles\n%[2]s\nwant %[1]q in them", want, way)
		}
	}
	if way := inTheWay(nil); way == nil || len(way) != 0 {
		t.Errorf("inTheWay without obstacles returned %q, want an empty list", way)
	}
}
