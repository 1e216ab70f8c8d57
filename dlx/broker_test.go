package dlx_test

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// broker carries messages through a declared topology as RabbitMQ does, and a
// year of delay in no time. Whoever comes to rest is taken out at once.
type broker struct {
	model *rabbit.Broker
	vhost *rabbit.VHost
	ch    *rabbit.Channel
	now   time.Time
	rests []rest
}

// rest is where one copy of a message came to rest.
type rest struct {
	Queue      string
	RoutingKey string        // with which it got there
	After      time.Duration // since it was published
	Visited    []string      // the queues it expired in, in order
	at         time.Time
}

func newBroker() *broker {
	b := &broker{now: time.Unix(1_000_000_000, 0)}
	b.model = rabbit.New(rabbit.Options{Version: rabbit.Version{Major: 4, Minor: 3}}, b.now)
	b.vhost = b.model.VHost("/")
	b.ch = b.model.NewChannel(nil, b)
	return b
}

// Deliver makes it a rabbit.Sink, whose consumers are called as their queues.
func (b *broker) Deliver(queue string, d rabbit.Delivery) {
	r := rest{Queue: queue, RoutingKey: d.Message.RoutingKey(), at: b.now}
	deaths, _ := d.Message.Delivered(b.model.Version())["x-death"].([]any)
	for _, x := range deaths {
		name, _ := x.(amqp.Table)["queue"].(string)
		r.Visited = append([]string{name}, r.Visited...) // the latest comes first
	}
	b.rests = append(b.rests, r)
}

// Cancelled makes it a rabbit.Sink.
func (b *broker) Cancelled(string) {}

// Add declares a topology as a client would.
func (b *broker) Add(t topology.Topology) error {
	for _, e := range t.Exchanges {
		err := b.vhost.DeclareExchange(rabbit.ExchangeSpec{Name: e.Name, Kind: e.Kind, Durable: true, Internal: e.Internal, Args: e.Table()})
		if err != nil {
			return err
		}
	}
	for _, q := range t.Queues {
		if err := b.addQueue(q); err != nil {
			return err
		}
	}
	for _, x := range t.Bindings {
		_, err := b.vhost.Bind(rabbit.Binding{Source: x.Exchange, Queue: x.Queue, ToExchange: x.ToExchange, Key: x.RoutingKey, Args: x.Arguments}, nil)
		if err != nil {
			return fmt.Errorf("%+v: %w", x, err)
		}
	}
	return nil
}

func (b *broker) addQueue(q topology.Queue) error {
	known := b.vhost.Queue(q.Name) != nil
	got, err := b.vhost.DeclareQueue(rabbit.QueueSpec{Name: q.Name, Durable: true, Args: q.Table()}, nil)
	if err != nil {
		return err
	}
	if known || q.MessageTTL != nil {
		return nil
	}
	if refused := b.ch.Consume(got, rabbit.Consumer{Tag: q.Name, NoAck: true}, nil, func(string) {}); refused != nil {
		return fmt.Errorf("consume %s: %w", q.Name, refused)
	}
	return nil
}

// Publish gives all the places where the copies of a message come to rest, and
// whether the first exchange routed it at all (which the mandatory flag reports).
func (b *broker) Publish(exchange, key string) (rests []rest, routed bool, err error) {
	b.rests = nil
	began := b.now
	m, queues, refused := b.vhost.Prepare(exchange, key, amqp.Publishing{})
	if refused != nil {
		return nil, false, refused
	}
	out := b.vhost.Publish(m, queues)
	for range 1000 { // far above what any layout needs
		next, ok := b.model.Next()
		if !ok {
			for i := range b.rests {
				b.rests[i].After = b.rests[i].at.Sub(began)
			}
			return b.rests, out.Routed, nil
		}
		b.now = next
		b.model.Advance(next)
	}
	return nil, true, fmt.Errorf("a message to %q with key %q never comes to rest", exchange, key)
}
