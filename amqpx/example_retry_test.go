package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// What can never work goes to the dead-letter queue at once.
func ExampleReject() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.Send(ctx, amqpx.Message{Queue: "example.mail", Body: []byte("no address")}); err != nil {
		log.Fatal(err)
	}
	go func() {
		err := client.Consume(ctx, "example.mail", func(context.Context, *amqpx.Delivery) error {
			return amqpx.Reject(errors.New("there is no address"))
		})
		if err != nil {
			log.Print(err)
		}
	}()
	err = client.Consume(ctx, "example.mail.dead", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("%s: %s, %s\n", d.Body, d.Headers[amqpx.HeaderReason], d.Headers[amqpx.HeaderError])
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: no address: rejected, there is no address
}

// A handler that knows when to try again says so, instead of the retry policy.
func ExampleRetryIn() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.Send(ctx, amqpx.Message{Queue: "example.call", Body: []byte("api")}); err != nil {
		log.Fatal(err)
	}
	err = client.Consume(ctx, "example.call", func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt == 1 {
			retryAfter := 200 * time.Millisecond // from the answer's header, say
			return amqpx.RetryIn(retryAfter, errors.New("429 Too Many Requests"))
		}
		fmt.Println("attempt", d.Attempt)
		cancel()
		return nil
	}, amqpx.WithRetry(topology.Retry{Backoff: time.Hour}))
	if err != nil {
		log.Fatal(err)
	}
	// Output: attempt 2
}
