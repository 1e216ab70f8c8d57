package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: "amqp://guest:guest@127.0.0.1:5672/"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	if err := client.Consume(ctx, "texts", text); err != nil {
		log.Fatal(err)
	}
}

// text pretends to send a text message to a phone number, which does not work the first time.
func text(_ context.Context, d *amqpx.Delivery) error {
	if d.Attempt == 1 {
		fmt.Printf("%s, attempt 1: the provider does not answer\n", d.ID)
		return errors.New("the provider does not answer")
	}
	fmt.Printf("%s, attempt %d: sent to %s\n", d.ID, d.Attempt, d.Body)
	return nil
}
