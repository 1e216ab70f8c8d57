package inspect_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// Removes a dead letter from its queue and saves it in a file. It is then sent again from the file, with a corrected
// body.
func ExampleSaveFile() {
	ctx := context.Background()
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	if err := client.Send(ctx, amqpx.Message{Queue: "charge"}); err != nil { // declares charge and charge.dead
		log.Fatal(err)
	}
	bury(srv, amqp.Publishing{
		MessageId: "order-42", Body: []byte(`{"amount": -5}`), Headers: amqp.Table{amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "charge"},
	})

	dir, err := os.MkdirTemp("", "dead-letters")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "charge.jsonl")
	file, err := inspect.CreateSaveFile(path)
	if err != nil {
		log.Fatal(err)
	}
	report, err := inspect.Requeue(ctx, client, inspect.RequeueOptions{Queue: "charge.dead", Discard: true, Save: file.Save})
	if err != nil {
		log.Fatal(err)
	}
	if err := file.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Discarded, "discarded")

	fixed := func(yield func(inspect.SavedMessage, error) bool) {
		for m, err := range inspect.SavedIn(path) {
			m.Message.Body = []byte(`{"amount": 5}`)
			if !yield(m, err) {
				return
			}
		}
	}
	if report, err = inspect.Requeue(ctx, client, inspect.RequeueOptions{From: fixed}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Sent, "sent to", report.Results[0].Destination)
	// Output:
	// 1 discarded
	// 1 sent to charge
}

// bury publishes a dead letter to charge.dead, as a consumer does for a rejected message.
func bury(srv *amqptest.Server, dead amqp.Publishing) {
	conn, err := srv.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if err := ch.PublishWithContext(context.Background(), "", "charge.dead", true, false, dead); err != nil {
		log.Fatal(err)
	}
}
