package inspect_test

import (
	"context"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// Peek shows why messages are in a dead-letter queue, and leaves them there.
func ExamplePeek() {
	srv := amqptest.NewServer(amqptest.Options{Version: "4.3.0"})
	defer srv.Close()
	conn, err := inspect.Dial(context.Background(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reject(conn, "payments.dead")

	got, err := inspect.Peek(context.Background(), conn, "payments.dead", inspect.PeekOptions{Limit: 5})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range got.Messages {
		fmt.Println(m.ID, m.Reason, m.Destination.Queue, m.Error)
	}
	// Output: order-42 rejected payments card expired
}

// reject publishes a dead letter like one from a consumer of payments.
func reject(conn *amqp.Connection, queue string) {
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		log.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		log.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: "order-42", Headers: amqp.Table{
		amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: "payments", amqpx.HeaderError: "card expired",
	}})
	if err != nil || !confirm.Wait() {
		log.Fatal("not confirmed: ", err)
	}
}
