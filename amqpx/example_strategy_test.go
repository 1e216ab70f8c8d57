package amqpx_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// later is a custom strategy with a single queue, in which every message waits for 200 ms.
type later struct{}

const laterQueue = "later.all"

func (later) Name() string   { return "later" }
func (later) Prefix() string { return "later" }

// Topology returns the delivery exchange and the parked queue, which every strategy has, and the delay queue, from
// which messages expire into the delivery exchange.
func (later) Topology() topology.Topology {
	t := topology.DeliveryTopology("later")
	ttl, limit := 200*time.Millisecond, topology.NoDeliveryLimit
	t.Queues = append(t.Queues, topology.Queue{
		Name: laterQueue, Type: topology.Quorum, MessageTTL: &ttl, DeliveryLimit: &limit, Overflow: argument.RejectPublish,
		DeadLetter: &topology.DeadLetter{Exchange: topology.DeliveryExchange("later"), AtLeastOnce: true},
	})
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: laterQueue, Kind: "fanout"})
	t.Bindings = append(t.Bindings, topology.Binding{Exchange: laterQueue, Queue: laterQueue})
	return t
}

func (later) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{Exchange: topology.DeliveryExchange("later"), Queue: dest.TargetQueue("later"), RoutingKey: dest.Key("later")}}
}

func (later) MaxDelay() time.Duration { return 200 * time.Millisecond }

func (l later) Route(dest topology.Destination, delay, _ time.Duration) (topology.Route, error) {
	switch {
	case delay > l.MaxDelay():
		return topology.Route{}, &topology.DelayError{Strategy: l.Name(), Delay: delay, Max: l.MaxDelay(), Reason: "is too long"}
	case delay == 0:
		return topology.Route{Exchange: topology.DeliveryExchange("later"), RoutingKey: dest.Key("later"), Mandatory: true}, nil
	}
	return topology.Route{Exchange: laterQueue, Queue: laterQueue, RoutingKey: dest.Key("later"), Delay: l.MaxDelay(), Hops: 1, Mandatory: true}, nil
}

// A custom strategy describes which objects must exist on the broker and to which of them a message is published. The
// client does the rest.
func ExampleStrategy() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL(), Strategy: later{}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	sent := time.Now()
	if err := client.Send(ctx, amqpx.Message{Queue: "example.later", Delay: 150 * time.Millisecond}); err != nil {
		log.Fatal(err)
	}
	err = client.Consume(ctx, "example.later", func(context.Context, *amqpx.Delivery) error {
		fmt.Println("too early:", time.Since(sent) < 150*time.Millisecond)
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: too early: false
}
