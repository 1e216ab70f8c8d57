package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Delays a message that another program has sent without a delay. When it is due, it is published to an exchange with
// its original routing key and properties.
func ExampleClient_Forward() {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	err = client.Apply(ctx, topology.Topology{
		Exchanges: []topology.Exchange{{Name: "orders", Kind: "topic"}, {Name: "orders.later", Kind: "topic"}},
		Queues:    []topology.Queue{{Name: "waiting"}, {Name: "mail"}},
		Bindings: []topology.Binding{
			{Exchange: "orders", Queue: "waiting", RoutingKey: "#"}, {Exchange: "orders.later", Queue: "mail", RoutingKey: "order.#"},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	go client.Consume(ctx, "waiting", func(ctx context.Context, d *amqpx.Delivery) error {
		return client.Forward(ctx, d, topology.Destination{Queue: "due"}, 50*time.Millisecond)
	})
	go client.Consume(ctx, "due", func(ctx context.Context, d *amqpx.Delivery) error {
		err := client.Forward(ctx, d, topology.Destination{Exchange: "orders.later", RoutingKey: d.RoutingKey}, 0)
		if errors.Is(err, amqpx.ErrUnroutable) {
			return amqpx.Reject(err) // no queue receives it, so a retry would not help
		}
		return err
	})

	other, err := srv.Connect() // a program that does not use rabbitdelay
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()
	ch, err := other.Channel()
	if err != nil {
		log.Fatal(err)
	}
	err = ch.PublishWithContext(ctx, "orders", "order.paid", false, false, amqp.Publishing{Body: []byte("42"), Expiration: "60000"})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	go client.Consume(ctx, "mail", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("%s by %s, expires after %s ms\n", d.Body, d.RoutingKey, d.Expiration)
		close(done)
		return nil
	})
	<-done
	// Output: 42 by order.paid, expires after 60000 ms
}

// A handler that is unable to work, for a reason unrelated to the message, returns the message to its queue unchanged.
func ExampleRequeue() {
	maintenance := true
	handle := func(_ context.Context, d *amqpx.Delivery) error {
		if maintenance {
			return amqpx.Requeue(errors.New("maintenance"))
		}
		return nil
	}
	err := handle(context.Background(), &amqpx.Delivery{})
	fmt.Println(err, amqpx.IsRequeued(err))
	// Output: maintenance true
}
