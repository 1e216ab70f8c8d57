package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

func main() {
	ctx := context.Background()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: "amqp://guest:guest@127.0.0.1:5672/"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	for _, phone := range os.Args[1:] {
		err := client.Send(ctx, amqpx.Message{ID: "text-" + phone, Queue: "texts", Delay: 10 * time.Second, Body: []byte(phone)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("sent", "text-"+phone)
	}
}
