package bridge_test

import (
	"context"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A producer publishes as it did with the plugin, and its consumer receives the message when it is due.
func Example() {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	x := bridge.Exchange{Name: "orders.delayed", Type: "direct"} // its x-delayed-type
	b, err := bridge.New(client, bridge.Config{Exchange: x})
	if err != nil {
		log.Fatal(err)
	}
	// Consumers bind their queues to the exchange for due messages instead.
	want := x.Topology()
	want.Queues = append(want.Queues, topology.Queue{Name: "mail"})
	want.Bindings = append(want.Bindings, topology.Binding{Exchange: x.Due(), Queue: "mail", RoutingKey: "reminder"})
	if err := client.Apply(ctx, want); err != nil {
		log.Fatal(err)
	}
	go b.Run(ctx)

	producer, err := srv.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer producer.Close()
	ch, err := producer.Channel()
	if err != nil {
		log.Fatal(err)
	}
	published := time.Now()
	err = ch.PublishWithContext(ctx, "orders.delayed", "reminder", false, false, amqp.Publishing{
		Headers: amqp.Table{"x-delay": 50}, Body: []byte("pay, please"),
	})
	if err != nil {
		log.Fatal(err)
	}

	done := make(chan struct{})
	go client.Consume(ctx, "mail", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("%s: %s, x-delay %v, early: %v\n", d.RoutingKey, d.Body, d.Headers["x-delay"], time.Since(published) < 50*time.Millisecond)
		close(done)
		return nil
	})
	<-done
	// Output: reminder: pay, please, x-delay -50, early: false
}
