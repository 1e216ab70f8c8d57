package status_test

import (
	"context"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// Take returns what waits for a destination, and what it could not see. Give
// snapshot.Source the management API to see more, and Source a store to see tasks.
func ExampleTake() {
	ctx := context.Background()
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	for range 3 {
		if err := client.Send(ctx, amqpx.Message{Queue: "orders.expire"}); err != nil {
			log.Fatal(err)
		}
	}

	want := client.Strategy().Topology()
	want.Destinations = []topology.Destination{{Queue: "orders.expire"}}
	s, err := status.Take(ctx, status.Source{
		Want:   doctor.Config{Want: want.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum)},
		Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return srv.Connect() }},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range s.Destinations {
		fmt.Printf("%s: %d ready, %d consumers\n", d.Name, d.Waiting.Ready, d.Consumers)
	}
	fmt.Println("complete:", s.Complete())
	// Output:
	// orders.expire: 3 ready, 0 consumers
	// complete: false
}
