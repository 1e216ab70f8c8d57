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

// A handler rejects a message that can never be handled. It is moved to the dead-letter queue immediately.
func ExampleReject() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
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

// A handler that knows when to try again overrides the retry policy.
func ExampleRetryIn() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Send(ctx, amqpx.Message{Queue: "example.call", Body: []byte("api")}); err != nil {
		log.Fatal(err)
	}
	err = client.Consume(ctx, "example.call", func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt == 1 {
			retryAfter := 200 * time.Millisecond // for example from the response's header
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

// A handler that waits for a condition can try again later without using up an attempt.
func ExampleSnooze() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Send(ctx, amqpx.Message{Queue: "example.export", Body: []byte("export-7")}); err != nil {
		log.Fatal(err)
	}
	ready := func(d *amqpx.Delivery) bool { return d.Snoozes == 2 } // for example a request to the exporting service
	err = client.Consume(ctx, "example.export", func(_ context.Context, d *amqpx.Delivery) error {
		if !ready(d) {
			return amqpx.Snooze(200 * time.Millisecond)
		}
		fmt.Printf("%s is ready; attempt %d\n", d.Body, d.Attempt)
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: export-7 is ready; attempt 1
}

// Middleware runs code for every message, so that handlers need not repeat it.
func ExampleWithMiddleware() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Send(ctx, amqpx.Message{Queue: "example.middleware", Type: "greeting", Body: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	logged := func(next amqpx.Handler) amqpx.Handler {
		return func(ctx context.Context, d *amqpx.Delivery) error {
			err := next(ctx, d)
			fmt.Printf("%s: %v\n", d.Type, err)
			return err
		}
	}
	err = client.Consume(ctx, "example.middleware", func(ctx context.Context, _ *amqpx.Delivery) error {
		defer cancel()
		_, limited := ctx.Deadline()
		fmt.Println("limited:", limited)
		return nil
	}, amqpx.WithMiddleware(logged, amqpx.Timeout(time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// limited: true
	// greeting: <nil>
}
