package live_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Declares the objects of an application before its services start, and then shows how a changed topology differs from
// them.
func ExampleBroker() {
	server := amqptest.NewServer(amqptest.Options{})
	defer server.Close()
	conn, err := server.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ctx, broker := context.Background(), live.Broker{Conn: conn}
	shop := topology.Topology{Queues: []topology.Queue{{Name: "invoices"}}}
	if err := broker.Apply(ctx, shop, live.ApplyOptions{}); err != nil {
		log.Fatal(err)
	}

	limit := int64(5)
	shop.Queues = append(shop.Queues, topology.Queue{Name: "orders"})
	shop.Queues[0].MaxLength = &limit
	plan, err := broker.Plan(ctx, shop)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range plan.Steps {
		fmt.Println(s.Name, s.Action, s.Mismatches)
	}
	// Output:
	// invoices conflict [x-max-length: wanted 5, found none]
	// orders create []
}
