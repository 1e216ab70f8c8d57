package live

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// If the Go channel with returned messages is closed, the canary does not mistake that for a returned message.
func TestCanaryOnAClosedChannel(t *testing.T) {
	returned, arrivals := make(chan amqp.Return), make(chan amqp.Delivery)
	close(returned)
	w := &canaryRoute{open: map[string]time.Time{"1": {}}}
	c := &canary{routes: []*canaryRoute{w}, returned: returned, arrivals: arrivals}
	if err := c.round(t.Context(), func(*canaryRoute) error { return nil }); !errors.Is(err, errCanaryGone) {
		t.Errorf("a round after the channel was closed: got %v, want errCanaryGone", err)
	}
}
