package amqpx_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func levels(t *testing.T, layout string) *dlx.Levels {
	t.Helper()
	s, err := dlx.NewLevels(dlx.LevelsConfig{Layout: layout})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A worker declares its own queue. Send declares neither that queue nor a dead-letter queue, and works once the worker
// has started.
func TestForeignQueueIsNotDeclared(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: levels(t, dlx.LayoutCelery)})
		err := c.Send(m.within(time.Minute), amqpx.Message{Queue: "celery", Delay: time.Second})
		if !errors.Is(err, topology.ErrDestination) || !strings.Contains(err.Error(), "that system's programs declare the queue") {
			t.Errorf("Send before the worker has started: got %v, want ErrDestination with a text that says which programs declare the queue", err)
		}
		if _, there := m.Queue("celery"); there {
			t.Error("the worker's queue was declared by Send, want no queue")
		}
		m.Declare("celery", amqp.Table{"x-queue-type": "quorum"})
		after(time.Minute)
		c.mustSend(amqpx.Message{Queue: "celery", Delay: 1500 * time.Millisecond})
		if _, there := m.Queue("celery.dead"); there {
			t.Error("a dead-letter queue was declared by Send, want none")
		}
		m.Holds("celery_delayed_1", 1, 0)
		after(2 * time.Second)
		m.Holds("celery", 1, 0)
	})
}

// A message to an NServiceBus endpoint has a header with its delay, and its retry has one with the delay of the retry.
// The handler sees the original destination rather than the exchanges on the way.
func TestForeignDelayHeader(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: levels(t, dlx.LayoutNServiceBus)})
		var seen []any
		k := c.consume("Sales", func(_ context.Context, d *amqpx.Delivery) error {
			seen = append(seen, d.Headers[foreign.HeaderNServiceBusDelay])
			if d.Exchange != "" || d.RoutingKey != "Sales" {
				t.Errorf(`the delivery has the exchange %q and the routing key %q, want "" and "Sales"`, d.Exchange, d.RoutingKey)
			}
			switch d.Attempt {
			case 1:
				return amqpx.RetryIn(5*time.Second, errors.New("later"))
			case 2:
				return amqpx.RetryIn(0, errors.New("soon"))
			}
			return nil
		})
		c.mustSend(amqpx.Message{Queue: "Sales", Delay: 90 * time.Second, Headers: amqp.Table{foreign.HeaderNServiceBusDelay: int32(7)}})
		after(2 * time.Minute)
		if len(seen) != 3 || seen[0] != int32(90) || seen[1] != int32(5) || seen[2] != int32(1) {
			t.Errorf("the deliveries have the delay headers %v, want 90, 5 and 1", seen)
		}
		k.stop()
	})
}

// A dead letter from a worker's queue is attributed to that queue rather than to the delay levels in front of it.
func TestForeignLevelsAreNotDeaths(t *testing.T) {
	death := func(queue, reason string) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "exchange": "", "routing-keys": []any{queue}, "time": time.Unix(1, 0)}
	}
	raw := amqp.Delivery{Headers: amqp.Table{"x-death": []any{death("celery_delayed_0", "expired"), death("celery", "rejected")}}}
	if l := inspect.ReadDeadLetter(raw, "graveyard", "delay"); l.Reason != "rejected" || l.Destination.Queue != "celery" {
		t.Errorf(`the worker's dead letter: got the reason %q and the destination %+v, want "rejected" and the queue "celery"`, l.Reason, l.Destination)
	}
	raw = amqp.Delivery{RoutingKey: strings.Repeat("0.", 27) + "1.Billing.Sales"}
	if l := inspect.ReadDeadLetter(raw, "delay.parked", "delay"); l.Destination.Queue != "Billing.Sales" {
		t.Errorf(`a parked message: got the destination %+v, want the queue "Billing.Sales"`, l.Destination)
	}
}
