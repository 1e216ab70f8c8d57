package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Sends a message with a delay, and consumes it when it is due.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	err = client.Send(ctx, amqpx.Message{
		Queue: "example.orders.expire",
		Delay: 200 * time.Millisecond, // 30 * time.Minute in production, for example
		Body:  []byte(`{"order":42}`),
	})
	if err != nil {
		log.Fatal(err)
	}

	err = client.Consume(ctx, "example.orders.expire", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("%s, early: %v\n", d.Body, time.Now().Before(d.DueAt))
		cancel() // one message is enough for this example
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: {"order":42}, early: false
}

// A message for an exchange is published to it with the routing key when it is due.
func ExampleClient_Send_exchange() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	// The application's own objects; rabbitdelay apply declares them from YAML.
	err = client.Apply(ctx, topology.Topology{
		Exchanges: []topology.Exchange{{Name: "example.posts", Kind: "topic"}},
		Queues:    []topology.Queue{{Name: "example.feed"}},
		Bindings:  []topology.Binding{{Exchange: "example.posts", Queue: "example.feed", RoutingKey: "published.#"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Send(ctx, amqpx.Message{
		Exchange: "example.posts", RoutingKey: "published.en",
		DeliverAt: time.Now().Add(200 * time.Millisecond), // tomorrow at 08:00, for example
		Body:      []byte("post 7"),
	})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Consume(ctx, "example.feed", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("%s by %s %s\n", d.Body, d.Exchange, d.RoutingKey)
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: post 7 by example.posts published.en
}

// A message whose handler fails is retried with a growing delay. After the last attempt, it is moved to the dead-letter
// queue.
func ExampleClient_Consume_retry() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Send(ctx, amqpx.Message{Queue: "example.charge", Body: []byte("card 1")}); err != nil {
		log.Fatal(err)
	}
	charge := func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt < 3 {
			fmt.Println("attempt", d.Attempt, "failed")
			return errors.New("the bank does not answer")
		}
		fmt.Println("attempt", d.Attempt, "succeeded")
		cancel()
		return nil
	}
	err = client.Consume(ctx, "example.charge", charge,
		amqpx.WithConcurrency(4),
		amqpx.WithRetry(topology.Retry{MaxAttempts: 5, Backoff: 100 * time.Millisecond}))
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// attempt 1 failed
	// attempt 2 failed
	// attempt 3 succeeded
}

// SendBatch reports the messages that failed. errors.Is distinguishes messages that were certainly not sent from
// messages that may have been sent.
func ExampleClient_SendBatch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	msgs := []amqpx.Message{
		{ID: "reminder-1", Queue: "example.reminders", Delay: time.Hour},
		{ID: "reminder-2", Exchange: "no.such.exchange", Delay: time.Hour},
	}
	err = client.SendBatch(ctx, msgs)
	if failed, ok := errors.AsType[*amqpx.BatchError](err); ok {
		for i, f := range failed.Failed {
			fmt.Println(msgs[i].ID, "certainly not sent:", errors.Is(f, amqpx.ErrNotSent))
		}
	}
	// Output: reminder-2 certainly not sent: true
}

// A consumer in another language reads plain AMQP headers.
func ExampleDelivery_headers() {
	headers := amqp.Table{
		amqpx.HeaderDue:         time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC).UnixMilli(),
		amqpx.HeaderAttempt:     int64(2),
		amqpx.HeaderDestination: "events:order.expired",
	}
	fmt.Println(headers["rabbitdelay-due"], headers["rabbitdelay-attempt"], headers["rabbitdelay-destination"])
	// Output: 1777622400000 2 events:order.expired
}
