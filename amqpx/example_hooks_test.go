package amqpx_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// outcomes counts what became of messages. It is a SendHook and a HandleHook; one
// that looks after connections is a StateHook.
type outcomes struct{}

func (outcomes) SendStart(ctx context.Context, m *amqpx.Message) context.Context {
	m.Headers["tenant"] = "acme" // headers may be added
	return ctx
}

func (outcomes) SendEnd(_ context.Context, e amqpx.SendEnd) {
	fmt.Println("sent, error:", e.Err)
}

func (outcomes) HandleStart(ctx context.Context, _ *amqpx.Delivery) context.Context { return ctx }

func (outcomes) HandleEnd(_ context.Context, e amqpx.HandleEnd) {
	fmt.Println(e.Outcome, "for", e.Delivery.Headers["tenant"], "late:", e.Lateness >= 0)
}

// Hooks see each send and each delivery, for metrics and traces.
func ExampleHook() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL(), Hooks: []amqpx.Hook{outcomes{}}})
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
