package plugin

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// delayed is an x-delayed-message exchange in a virtual host.
type delayed struct {
	Name string `json:"name"`
	// Type is the x-delayed-type of the exchange, the exchange type by which it routes messages that are due.
	Type string `json:"delayed_type"`
	// Waiting is the number of waiting messages of this exchange on the node that was asked. It is nil if the broker
	// did not report the number.
	Waiting *int64 `json:"waiting"`
	// Own reports whether the exchange belongs to rabbitdelay's plugin strategy.
	Own bool `json:"own"`
	// Bound lists the bindings from this exchange. From lists the exchanges that have a binding to it.
	Bound []bound  `json:"bound"`
	From  []string `json:"from"`
}

// bound is a binding from a delayed exchange to a queue or another exchange.
type bound struct {
	Queue      string         `json:"queue,omitempty"`
	Exchange   string         `json:"exchange,omitempty"`
	RoutingKey string         `json:"routing_key"`
	Arguments  map[string]any `json:"arguments,omitempty"`
}

// survey returns the x-delayed-message exchanges of a virtual host, ordered by name. The parameter prefix is the prefix
// of rabbitdelay's objects.
func survey(found plan.State, prefix string) []delayed {
	list := []delayed{}
	for name, e := range found.Exchanges {
		if e.Kind != argument.DelayedExchange {
			continue
		}
		d := delayed{Name: name, Own: name == prefix+".plugin", Bound: []bound{}, From: []string{}}
		d.Type, _ = e.Arguments[argument.DelayedType].(string)
		if e.HeldKnown {
			d.Waiting = &e.Held
		}
		for _, b := range found.Bindings {
			if b.Exchange == name {
				d.Bound = append(d.Bound, bound{b.Queue, b.ToExchange, b.RoutingKey, b.Arguments})
			}
			if b.ToExchange == name && !slices.Contains(d.From, b.Exchange) {
				d.From = append(d.From, b.Exchange)
			}
		}
		slices.Sort(d.From)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b delayed) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// inTheWay returns what has to be done before a broker can be upgraded to RabbitMQ 4.3 without losing messages: one
// sentence for each obstacle, in the order in which an operator should remove them.
func inTheWay(list []delayed) []string {
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
		out = append(out, fmt.Sprintf("messages waiting in the plugin's table: %d. Disabling the plugin or enabling the feature flag khepri_db deletes them; if their exchange is deleted, they are dropped when they are due", waiting))
	}
	if unknown > 0 {
		out = append(out, fmt.Sprintf("exchanges for which the broker does not report the number of waiting messages: %d", unknown))
	}
	for _, d := range list {
		if d.Own {
			out = append(out, fmt.Sprintf("exchange %q belongs to rabbitdelay's plugin strategy: choose another strategy (delay.strategy), and retire this exchange", d.Name))
			continue
		}
		out = append(out, fmt.Sprintf("exchange %q: RabbitMQ 4.3 has no type x-delayed-message; when no more messages wait in it, declare it again as %s and let its producers delay messages by other means", d.Name, cmp.Or(d.Type, "another type")))
	}
	return out
}
