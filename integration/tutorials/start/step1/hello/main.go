package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	client, err := amqpx.Open(ctx, amqpx.Config{URL: "amqp://guest:guest@127.0.0.1:5672/"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	sent := time.Now()
	err = client.Send(ctx, amqpx.Message{Queue: "hello", Delay: 5 * time.Second, Body: []byte("hello")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent")

	err = client.Consume(ctx, "hello", func(_ context.Context, d *amqpx.Delivery) error {
		fmt.Printf("received %s after %s\n", d.Body, time.Since(sent).Round(time.Millisecond))
		stop() // one message is enough here; a service would continue
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
