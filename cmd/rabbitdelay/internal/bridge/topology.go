package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Types returns the possible values of x-delayed-type.
func Types() []string {
	return []string{amqp.ExchangeDirect, amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeHeaders}
}

// Exchange is the plugin's exchange that a bridge replaces.
type Exchange struct {
	Name string // the name to which producers publish
	Type string // its x-delayed-type: one of Types
}

// ErrExchange is wrapped by every error of Exchange.Validate.
var ErrExchange = errors.New("invalid exchange")

// maxName leaves space for the suffixes of the names that Exchange returns and for the prefixes of a strategy.
const maxName = 160

// Validate returns an error that wraps ErrExchange if the exchange cannot be bridged. The parameter prefix is the
// prefix of the delay objects.
func (x Exchange) Validate(prefix string) error {
	switch {
	case x.Name == "" || len(x.Name) > maxName:
		return fmt.Errorf("%w: name %q; expected 1 to %d bytes", ErrExchange, x.Name, maxName)
	case strings.HasPrefix(x.Name, "amq."):
		return fmt.Errorf("%w: %q is a predefined exchange, which the plugin cannot delay", ErrExchange, x.Name)
	case naming.Reserved(prefix, x.Name):
		return fmt.Errorf("%w: %q belongs to the delay strategies with prefix %q; its messages are delayed without a bridge", ErrExchange, x.Name, prefix)
	case !slices.Contains(Types(), x.Type):
		return fmt.Errorf("%w: type %q; expected the former x-delayed-type of the exchange, one of %s", ErrExchange, x.Type, strings.Join(Types(), ", "))
	}
	return nil
}

// Due returns the name of the exchange to which consumers bind their queues. Its type is Type. Messages are published
// to it when they are due, with their original routing key.
func (x Exchange) Due() string { return x.Name + ".due" }

// Queue returns the name of the queue that receives all messages that producers publish.
func (x Exchange) Queue() string { return x.Name + ".bridge" }

// DueQueue returns the name of the queue of due messages, which the bridge publishes to Due.
func (x Exchange) DueQueue() string { return x.Name + ".bridge.due" }

// DeadQueue returns the name of the queue of messages that could not be delivered. Each has the reason in its headers.
func (x Exchange) DeadQueue() string { return x.Name + ".bridge.dead" }

// Topology returns the objects that a bridge needs on the broker. The exchange with the original name becomes a topic
// exchange for every Type, because only a topic exchange routes all routing keys to one queue. All queues are quorum
// queues. A message that expires in Queue is dead-lettered to DueQueue and is still delayed.
func (x Exchange) Topology() topology.Topology {
	in := topology.Destination{Queue: x.Queue(), DeadLetter: x.DueQueue()}
	due := topology.Destination{Queue: x.DueQueue(), DeadLetter: x.DeadQueue()}
	queues := due.Queues(topology.Quorum)
	for _, q := range in.Queues(topology.Quorum) {
		if q.Name == x.Queue() {
			queues = append(queues, q)
		}
	}
	return topology.Topology{
		Exchanges: []topology.Exchange{{Name: x.Name, Kind: amqp.ExchangeTopic}, {Name: x.Due(), Kind: x.Type}},
		Queues:    queues,
		Bindings:  []topology.Binding{{Exchange: x.Name, Queue: x.Queue(), RoutingKey: "#"}},
	}
}

// Bypasses returns the bindings of the exchange that are not the bridge's. Their queues receive messages immediately,
// without the delay.
func (x Exchange) Bypasses(found []topology.Binding) (all []topology.Binding) {
	for _, b := range found {
		if b.Exchange == x.Name && b.Queue != x.Queue() {
			all = append(all, b)
		}
	}
	return all
}

// Explain adds advice to the *topology.ConflictError for an exchange that exists with another type. It returns any
// other error unchanged, including nil.
func (x Exchange) Explain(err error) error {
	c, conflict := errors.AsType[*topology.ConflictError](err)
	if !conflict || c.Kind != topology.KindExchange || c.Name != x.Name {
		return err
	}
	return fmt.Errorf("%w: the bridge declares a topic exchange with this name; run the bridge on the new broker, which does not have the plugin, or wait until this exchange has delivered its messages, delete it and start again; docs/off-the-plugin.md has the steps", err)
}
