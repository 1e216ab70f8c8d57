package trace_test

import (
	"context"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Take returns where a message is and why. With a database, it also returns the task's row and the idempotency records.
func ExampleTake() {
	ctx := context.Background()
	srv := amqptest.NewServer(amqptest.Options{Version: "4.3.0"})
	defer srv.Close()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	want := client.Strategy().Topology()
	want.Destinations = []topology.Destination{{Queue: "orders.expire"}}
	// The message is due, but its destination has no binding.
	conn, err := srv.Connect()
	if err != nil {
		log.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		log.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirm("delay.deliver", "clock.0.0.0.0.0.0.gone", false, false, amqp.Publishing{MessageId: "order-42"})
	if err != nil || !confirm.Wait() {
		log.Fatal("not confirmed: ", err)
	}

	t, err := trace.Take(ctx, "order-42", trace.Source{Status: status.Source{
		Want: doctor.Config{Want: want.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum)},
		Broker: snapshot.Source{Dial: func(ctx context.Context) (*amqp.Connection, error) {
			return inspect.Dial(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.Why)
	// Output: it is parked in delay.parked: when it was due, no queue was bound for its destination gone; once one is bound, rabbitdelay requeue sends it there
}
