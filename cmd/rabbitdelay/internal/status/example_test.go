package status_test

import (
	"context"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Take returns the messages that wait for a destination, and the areas that could not be read. Set the management API
// in snapshot.Source to read more, and a store in Source to read tasks.
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
		fmt.Printf("%s: %d ready, %d consumers\n", d.Name, d.Waiting.Ready, *d.Consumers)
	}
	fmt.Println("complete:", s.Complete())
	// Output:
	// orders.expire: 3 ready, 0 consumers
	// complete: false
}
