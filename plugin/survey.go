package plugin

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Delayed is an x-delayed-message exchange of a virtual host.
type Delayed struct {
	Name string `json:"name"`
	// Type is the x-delayed-type of the exchange, by which it routes messages that are due.
	Type string `json:"delayed_type"`
	// Waiting is the number of waiting messages of this exchange on the node that was asked. It is nil if the broker
	// did not report the number.
	Waiting *int64 `json:"waiting"`
	// Own reports whether the exchange belongs to rabbitdelay's plugin strategy.
	Own bool `json:"own"`
	// Bound lists the bindings from this exchange. From lists the exchanges that have a binding to it.
	Bound []Bound  `json:"bound"`
	From  []string `json:"from"`
}

// Bound is a binding from a Delayed exchange to a queue or another exchange.
type Bound struct {
	Queue      string         `json:"queue,omitempty"`
	Exchange   string         `json:"exchange,omitempty"`
	RoutingKey string         `json:"routing_key"`
	Arguments  map[string]any `json:"arguments,omitempty"`
}

// Survey returns the x-delayed-message exchanges of a virtual host, ordered by name. Prefix is the prefix of
// rabbitdelay's objects.
func Survey(found observed.Broker, prefix string) []Delayed {
	list := []Delayed{}
	for name, e := range found.Exchanges {
		if e.Kind != exchangeKind {
			continue
		}
		d := Delayed{Name: name, Own: name == exchangeName(prefix), Bound: []Bound{}, From: []string{}}
		d.Type, _ = e.Arguments[argument.DelayedType].(string)
		if e.HeldKnown {
			d.Waiting = &e.Held
		}
		for _, b := range found.Bindings {
			if b.Exchange == name {
				d.Bound = append(d.Bound, Bound{b.Queue, b.ToExchange, b.RoutingKey, b.Arguments})
			}
			if b.ToExchange == name && !slices.Contains(d.From, b.Exchange) {
				d.From = append(d.From, b.Exchange)
			}
		}
		slices.Sort(d.From)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Delayed) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// InTheWay returns the obstacles to upgrading a broker to RabbitMQ 4.3 without losing messages, as one sentence each,
// in the order in which an operator should remove them.
func InTheWay(list []Delayed) []string {
	out := []string{}
	waiting, unknown := int64(0), 0
	for _, d := range list {
		if d.Waiting == nil {
			unknown++
			continue
		}
		waiting += *d.Waiting
	}
	if waiting > 0 {
		out = append(out, fmt.Sprintf("messages that wait in the plugin's table: %d. Disabling the plugin or enabling the feature flag khepri_db destroys them; deleting their exchange lets them be dropped when they are due", waiting))
	}
	if unknown > 0 {
		out = append(out, fmt.Sprintf("exchanges of which the broker does not tell how many messages wait: %d", unknown))
	}
	for _, d := range list {
		if d.Own {
			out = append(out, fmt.Sprintf("exchange %q of rabbitdelay's strategy plugin: choose another strategy (delay.strategy), and retire this one", d.Name))
			continue
		}
		out = append(out, fmt.Sprintf("exchange %q: RabbitMQ 4.3 has no type x-delayed-message; declare it again as %s once nothing waits in it, and have its producers delay in another way", d.Name, cmp.Or(d.Type, "another type")))
	}
	return out
}
