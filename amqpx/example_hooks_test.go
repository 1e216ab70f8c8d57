package amqpx_test

import (
	"context"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A hook is called for each send and each delivery, for example to record metrics and traces.
func ExampleHook() {
	outcomes := amqpx.Hook{
		SendStart: func(ctx context.Context, _ amqpx.Message, headers amqp.Table) context.Context {
			headers["tenant"] = "acme"
			return ctx
		},
		SendEnd: func(_ context.Context, e amqpx.SendEnd) {
			fmt.Println("sent, error:", e.Err)
		},
		HandleEnd: func(_ context.Context, e amqpx.HandleEnd) {
			fmt.Println(e.Outcome, "for", e.Delivery.Headers["tenant"], "late:", e.Lateness >= 0)
		},
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL(), Hooks: []amqpx.Hook{outcomes}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Send(ctx, amqpx.Message{Queue: "example.observed", Delay: 100 * time.Millisecond}); err != nil {
		log.Fatal(err)
	}
	err = client.Consume(ctx, "example.observed", func(context.Context, *amqpx.Delivery) error {
		cancel()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// sent, error: <nil>
	// acked for acme late: true
}
