package inspect_test

import (
	"context"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Before a program moves another program's messages, it finds out which of them would be refused.
func ExampleRehearse() {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	conn, err := srv.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	rehearsal, err := inspect.Rehearse(conn, amqpx.Config{URL: srv.URL()})
	if err != nil {
		log.Fatal(err)
	}
	to := topology.Destination{Exchange: "orders", RoutingKey: "paid"}
	err = rehearsal.Republish(context.Background(), amqp.Delivery{Body: []byte("42")}, to, time.Now().Add(time.Hour), 0)
	fmt.Println(err)
	// Output: destination exchange "orders" with routing key "paid" does not exist; declare the exchange first (rabbitdelay apply, or Client.Apply): Exception (404) Reason: "NOT_FOUND - no exchange 'orders' in vhost '/'"
}
