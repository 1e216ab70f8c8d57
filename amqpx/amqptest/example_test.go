package amqptest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Makes the broker refuse a queue's messages, and then accept them again. For a test in virtual time, see
// TestUnpaidOrderExpires in docs/testing.md.
func ExampleServer_Nack() {
	srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5"})
	defer srv.Close()
	client, err := amqpx.Open(context.Background(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	if err := client.Send(context.Background(), amqpx.Message{Queue: "invoices"}); err != nil {
		log.Fatal(err)
	}
	undo := srv.Nack("invoices")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err = client.Send(ctx, amqpx.Message{Queue: "invoices"})
	fmt.Println("nacked:", errors.Is(err, amqpx.ErrNacked))

	undo()
	err = client.Send(context.Background(), amqpx.Message{Queue: "invoices"})
	q, _ := srv.Queue("invoices")
	fmt.Printf("then: %v, %d ready\n", err, q.Ready)
	// Output:
	// nacked: true
	// then: <nil>, 2 ready
}
