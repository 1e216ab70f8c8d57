// Package export writes a topology in the forms of other tools, for teams that
// have their brokers' objects made by those.
package export

import (
	"encoding/json"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Definitions returns the topology as RabbitMQ's definitions in JSON, for `rabbitmqctl
// import_definitions`, the management API (POST /api/definitions) or
// `definitions.local.path`. The virtual host must exist. Importing deletes
// nothing, and leaves objects that exist as they are.
func Definitions(t topology.Topology, vhost string) ([]byte, error) {
	d := definitions{Queues: []queueDefinition{}, Exchanges: []exchangeDefinition{}, Bindings: []bindingDefinition{}}
	for _, q := range t.Queues {
		d.Queues = append(d.Queues, queueDefinition{Name: q.Name, Vhost: vhost, Durable: true, Arguments: q.Table()})
	}
	for _, e := range t.Exchanges {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{
			Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: e.Table(),
		})
	}
	for _, b := range t.Bindings {
		to, kind := target(b)
		d.Bindings = append(d.Bindings, bindingDefinition{
			Source: b.Exchange, Vhost: vhost, Destination: to, DestinationType: kind, RoutingKey: b.RoutingKey, Arguments: table(b.Arguments),
		})
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

type definitions struct {
	Exchanges []exchangeDefinition `json:"exchanges"`
	Queues    []queueDefinition    `json:"queues"`
	Bindings  []bindingDefinition  `json:"bindings"`
}

type exchangeDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

type queueDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

type bindingDefinition struct {
	Source          string         `json:"source"`
	Vhost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// target is where a binding leads.
func target(b topology.Binding) (name, kind string) {
	if b.ToExchange != "" {
		return b.ToExchange, "exchange"
	}
	return b.Queue, "queue"
}

// table is never nil: the broker wants an object.
func table(t map[string]any) map[string]any {
	if t == nil {
		return map[string]any{}
	}
	return t
}
