package live_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// overview is what a management API shows of a topology: that all is there, and no
// message in it.
type overview topology.Topology

func (o overview) Inspect(context.Context, topology.Topology) (observed.Broker, error) {
	found := observed.Broker{BindingsKnown: true, Exchanges: map[string]observed.Exchange{}, Queues: map[string]observed.Queue{}, Bindings: o.Bindings}
	for _, e := range o.Exchanges {
		found.Exchanges[e.Name] = observed.Exchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	for _, q := range o.Queues {
		found.Queues[q.Name] = observed.Queue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()}
	}
	return found, nil
}

// A destination to which a message comes in the last moment stays, and with it the
// queue of its dead letters.
func TestDestroyKeepsTheDeadLettersOfAQueueThatFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // nothing is under way
		top := topology.Topology{Destinations: []topology.Destination{{Queue: "orders"}}}.WithDestinationQueues("delay", topology.Quorum)
		if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), top, live.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		looks, last := 0, make(chan struct{})
		defer srv.Control(func(f amqptest.Frame) amqptest.Action {
			if !f.FromClient || f.Method != "queue.declare" || f.Name != "orders" {
				return amqptest.Action{}
			}
			if looks++; looks < 3 { // before it decides, twice
				return amqptest.Action{}
			}
			close(last)
			return amqptest.Action{Delay: time.Second}
		})()
		go func() {
			<-last
			publish(t, conn, "orders")
		}()
		report, err := live.Broker{Conn: conn, Inspector: overview(top)}.Destroy(t.Context(), top, removal.Options{Destinations: true})
		if full, ok := errors.AsType[*removal.NotEmptyError](err); !ok || full.Total != 1 {
			t.Errorf("got %s, %v", report, err)
		}
		if left := srv.Queues(); !slices.Equal(left, []string{"orders", "orders.dead"}) {
			t.Errorf("left %v", left)
		}
	})
}

func publish(t *testing.T, conn *amqp.Connection, queue string) {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Error(err)
		return
	}
	if err := ch.Confirm(false); err != nil {
		t.Error(err)
	}
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
	if err != nil || !c.Wait() {
		t.Errorf("publish: %v", err)
	}
}
