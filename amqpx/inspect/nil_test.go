package inspect_test

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Without a client or a connection, the functions return an error instead of panicking.
func TestNothingToWorkWith(t *testing.T) {
	_, requeued := inspect.Requeue(t.Context(), nil, inspect.RequeueOptions{Queue: "q.dead"})
	_, peeked := inspect.Peek(t.Context(), nil, "q.dead", inspect.PeekOptions{})
	_, walked := inspect.Walk(t.Context(), nil, "q.dead", inspect.PeekOptions{}, nil)
	passed := inspect.Republish(t.Context(), nil, amqp.Delivery{}, topology.Destination{Queue: "q"}, time.Now(), 0)
	for what, err := range map[string]error{"Requeue": requeued, "Peek": peeked, "Walk": walked, "Republish": passed} {
		if !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("%s: got %v, want amqpx.ErrConfig", what, err)
		}
	}
}

// Peek and Walk refuse a connection that was opened by amqp091-go directly, because it would break at the first message
// that amqp091-go cannot read.
func TestPeekRefusesAPlainConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		conn, err := m.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := inspect.Peek(t.Context(), conn, "q.dead", inspect.PeekOptions{}); !errors.Is(err, inspect.ErrPeek) {
			t.Errorf("Peek: got %v, want inspect.ErrPeek", err)
		}
		if _, err := inspect.Walk(t.Context(), conn, "q.dead", inspect.PeekOptions{}, nil); !errors.Is(err, inspect.ErrPeek) {
			t.Errorf("Walk: got %v, want inspect.ErrPeek", err)
		}
		if conn.IsClosed() {
			t.Error("the connection is closed after the refused calls, want it open")
		}
	})
}
