package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Types are those that an exchange of the plugin can have as its x-delayed-type.
func Types() []string {
	return []string{amqp.ExchangeDirect, amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeHeaders}
}

// Exchange is what the plugin had.
type Exchange struct {
	Name string // under which producers publish
	Type string // its x-delayed-type: one of Types
}

// ErrExchange is wrapped by every error of Exchange.Validate.
var ErrExchange = errors.New("invalid exchange")

// maxName leaves room for the longest name that is made of the exchange's, and for a
// strategy's words before it.
const maxName = 160

// Validate refuses what cannot be bridged. Prefix is that of the delay objects.
func (x Exchange) Validate(prefix string) error {
	switch {
	case x.Name == "" || len(x.Name) > maxName:
		return fmt.Errorf("%w: name %q; expected 1 to %d bytes", ErrExchange, x.Name, maxName)
	case strings.HasPrefix(x.Name, "amq."):
		return fmt.Errorf("%w: the broker has %q by itself, and no plugin delays in it", ErrExchange, x.Name)
	case topology.Reserved(prefix, x.Name):
		return fmt.Errorf("%w: %q belongs to the delay strategies with prefix %q; its messages are delayed without a bridge", ErrExchange, x.Name, prefix)
	case !slices.Contains(Types(), x.Type):
		return fmt.Errorf("%w: type %q; expected the x-delayed-type that it had: %s", ErrExchange, x.Type, strings.Join(Types(), ", "))
	}
	return nil
}

// Due is the exchange, of Type, to which consumers bind their queues: messages come to
// it when they are due, with their routing key.
func (x Exchange) Due() string { return x.Name + ".due" }

// Queue takes everything that producers publish.
func (x Exchange) Queue() string { return x.Name + ".bridge" }

// DueQueue has what is due, on its way to Due.
func (x Exchange) DueQueue() string { return x.Name + ".bridge.due" }

// DeadQueue keeps what could not be delivered, with the reason.
func (x Exchange) DeadQueue() string { return x.Name + ".bridge.dead" }

// Topology is what a bridge needs. Under the old name there is a topic exchange, whatever
// Type is: only that takes every routing key into one queue. All queues are quorum
// queues. What expires in Queue goes to DueQueue, and has its delay all the same.
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

// Bypasses are bindings of the exchange that are not the bridge's: what they lead to gets
// every message at once, and undelayed.
func (x Exchange) Bypasses(found []topology.Binding) (all []topology.Binding) {
	for _, b := range found {
		if b.Exchange == x.Name && b.Queue != x.Queue() {
			all = append(all, b)
		}
	}
	return all
}

// Explain adds what to do to an error that says that the exchange is there with another
// type; it returns any other as it is, nil included.
func (x Exchange) Explain(err error) error {
	c, conflict := errors.AsType[*topology.ConflictError](err)
	if !conflict || c.Kind != topology.KindExchange || c.Name != x.Name {
		return err
	}
	return fmt.Errorf("%w: a bridge needs the name for a topic exchange: use the broker without the plugin to which the producers move, or let what waits in it come out, delete it and begin again; docs/off-the-plugin.md has the steps", err)
}
