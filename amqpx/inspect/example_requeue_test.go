package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// A provider was down and its messages were dead-lettered. Now the provider is back. The messages that failed because
// of it return to their queue, and messages that were rejected for another reason stay.
func ExampleRequeue() {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	for _, body := range []string{"provider is down", "card rejected", "provider is down"} {
		if err := client.Send(ctx, amqpx.Message{Queue: "charge", Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}
	down, restored := context.WithCancel(ctx)
	dead := make(chan struct{}, 3)
	go client.Consume(down, "charge", func(_ context.Context, d *amqpx.Delivery) error {
		defer func() { dead <- struct{}{} }()
		return amqpx.Reject(errors.New(string(d.Body)))
	})
	for range 3 {
		<-dead
	}
	for ready := 0; ready < 3; time.Sleep(time.Millisecond) {
		info, err := client.QueueInfo(ctx, "charge.dead")
		if err != nil {
			log.Fatal(err)
		}
		ready = info.Ready
	}
	restored()

	report, err := inspect.Requeue(ctx, client, inspect.RequeueOptions{
		Queue:  "charge.dead",
		Filter: inspect.DeadLetterFilter{Error: "provider"},
		Rate:   1000, // messages per second
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range report.Results {
		fmt.Println(r.Count, r.Outcome, "to", r.Destination)
	}
	fmt.Println(report.Examined-report.Chosen, "not chosen")
	// Output:
	// 2 sent to charge
	// 1 not chosen
}
