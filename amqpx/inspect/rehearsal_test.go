package inspect_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Several goroutines in a bubble can rehearse concurrently, because time passes while one of them waits for another.
func TestRehearsalInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{Latency: time.Second})
		cfg := amqpx.Config{URL: srv.URL(), Dial: srv.Dial}
		conn, err := inspect.Dial(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err == nil {
			err = ch.ExchangeDeclare("events", "topic", true, false, false, false, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := inspect.Rehearse(conn, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, key := range []string{"a", "b", "c"} {
			all.Go(func() {
				if err := r.Republish(t.Context(), amqp.Delivery{MessageId: key}, topology.Destination{Exchange: "events", RoutingKey: key}, time.Now(), 0); err != nil {
					t.Errorf("Republish of %s: got %v, want no error", key, err)
				}
			})
		}
		all.Wait()
	})
}
