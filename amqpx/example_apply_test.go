package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Declares an application's own objects from YAML. Applying them again changes nothing. If an object exists with
// different arguments, Apply returns an error and leaves the object unchanged.
func ExampleClient_Apply() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{URL: brokerURL()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	shop, err := topology.ParseYAML([]byte(`
exchanges:
  - {name: example.shop, type: topic}
queues:
  - {name: example.invoices, max_length: 100000}
bindings:
  - {exchange: example.shop, queue: example.invoices, routing_key: "invoice.#"}
`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first:", client.Apply(ctx, shop))
	fmt.Println("again:", client.Apply(ctx, shop))

	limit := int64(5)
	shop.Queues[0].MaxLength = &limit
	if conflict, ok := errors.AsType[*topology.ConflictError](client.Apply(ctx, shop)); ok {
		fmt.Println("changed:", conflict.Name, "has another", conflict.Argument)
	}
	// Output:
	// first: <nil>
	// again: <nil>
	// changed: example.invoices has another x-max-length
}
