package messages_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If several clients use a destination for the first time at the same time, no message is parked. From 3.12 to 4.2, if
// another connection is creating the same binding, the broker confirms a bind before it routes by the binding.
func TestFirstUseByManyClientsAtTheSameTime(t *testing.T) {
	t.Parallel()
	const clients, each, rounds = 9, 30, 6
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		all := make([]*amqpx.Client, clients)
		for i := range all {
			all[i] = suite.OpenClient(t, amqpx.Config{URL: v.URL})
		}
		var destinations []topology.Destination
		for round := range rounds {
			destinations = append(destinations, topology.Destination{Queue: fmt.Sprintf("first.%d", round)})
		}
		if err := all[0].Apply(t.Context(), topology.Topology{
			Exchanges: []topology.Exchange{{Name: "first", Kind: "topic"}},
			Queues:    []topology.Queue{{Name: "first"}},
			Bindings:  []topology.Binding{{Exchange: "first", Queue: "first", RoutingKey: "#"}},
		}); err != nil {
			t.Fatal(err)
		}
		destinations = append(destinations, topology.Destination{Exchange: "first", RoutingKey: "a"}, topology.Destination{Exchange: "first", RoutingKey: "b"})
		for _, d := range destinations {
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i, c := range all {
				wg.Go(func() {
					<-start
					sendsTo(t, c, d, i, each)
				})
			}
			close(start)
			wg.Wait()
		}
		for _, d := range destinations[:rounds] {
			suite.Gathers(t, v, d.Queue, clients*each)
		}
		suite.Gathers(t, v, "first", 2*clients*each)
		if n := suite.MessagesIn(t, v, "delay.parked"); n > 0 {
			t.Errorf("%d messages are parked, want 0", n)
		}
	})
}

// sendsTo sends a client's share of the messages, half of them without a delay.
func sendsTo(t *testing.T, c *amqpx.Client, d topology.Destination, client, each int) {
	var wg sync.WaitGroup
	for n := range each {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Send(ctx, amqpx.Message{
				ID: fmt.Sprintf("%d-%d", client, n), Queue: d.Queue, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
				Delay: time.Duration(n%2) * 100 * time.Millisecond,
			}); err != nil {
				t.Errorf("client %d, message %d: got error %v, want nil", client, n, err)
			}
		})
	}
	wg.Wait()
}

// If a message arrived in a route queue before the queue had its TTL, the next client that uses the
// destination sends it on to its exchange.
func TestMessageWithoutTTLInARouteQueue(t *testing.T) {
	t.Parallel()
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		ch, err := v.Conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		d := topology.Destination{Exchange: "amq.direct", RoutingKey: "k"}
		route := d.RouteQueue(topology.DefaultPrefix)
		route.MessageTTL = nil
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		if err := c.Apply(t.Context(), topology.Topology{
			Queues:   []topology.Queue{{Name: "end"}, route},
			Bindings: []topology.Binding{{Exchange: d.Exchange, Queue: "end", RoutingKey: d.RoutingKey}},
		}); err != nil {
			t.Fatal(err)
		}
		for range 40 { // more than the broker forwards at a time
			if err := ch.PublishWithContext(t.Context(), "", route.Name, false, false, amqp.Publishing{}); err != nil {
				t.Fatal(err)
			}
		}
		suite.Eventually(t, "queue "+route.Name+" has 40 messages", func() bool { return suite.MessagesIn(t, v, route.Name) == 40 })
		if err := c.Send(t.Context(), amqpx.Message{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		suite.Eventually(t, "queue end has 40 messages", func() bool { return suite.MessagesIn(t, v, "end") == 40 })
		if n := suite.MessagesIn(t, v, route.Name); n > 0 {
			t.Errorf("%d messages are still in %s, want 0", n, route.Name)
		}
	})
}
