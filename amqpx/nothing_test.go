package amqpx_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A missing message, handler or unit results in an error that says what is missing.
func TestNothingGiven(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		switch err := c.Forward(t.Context(), &amqpx.Delivery{}, topology.Destination{Queue: "q"}, 30); {
		case !errors.Is(err, amqpx.ErrMessage):
			t.Errorf("a delay without its unit: got %v, want %v", err, amqpx.ErrMessage)
		case !strings.Contains(err.Error(), "30*time.Second"):
			t.Errorf("a delay without its unit: got %v, want an error that suggests 30*time.Second", err)
		}
		if err := c.Forward(t.Context(), nil, topology.Destination{Queue: "q"}, 0); !errors.Is(err, amqpx.ErrMessage) {
			t.Errorf("Forward without a delivery: got %v, want amqpx.ErrMessage", err)
		}
		if err := c.Consume(t.Context(), "q", amqpx.Timeout(time.Second)(nil)); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("Timeout without a handler: got %v, want amqpx.ErrConfig", err)
		}
		err := amqpx.ByType(nil, nil)(t.Context(), &amqpx.Delivery{Type: "x"})
		if !errors.Is(err, amqpx.ErrUnknownType) || !strings.Contains(err.Error(), "no type at all") {
			t.Errorf(`ByType without handlers: got %v, want amqpx.ErrUnknownType with "no type at all"`, err)
		}
	})
}
