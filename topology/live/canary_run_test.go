package live

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A channel of returns that has been closed is no return.
func TestCanaryOnAClosedChannel(t *testing.T) {
	returned, arrivals := make(chan amqp.Return), make(chan amqp.Delivery)
	close(returned)
	w := &canaryWay{open: map[string]time.Time{"1": {}}}
	c := &canary{ways: []*canaryWay{w}, returned: returned, arrivals: arrivals}
	if err := c.round(t.Context(), func(*canaryWay) error { return nil }); !errors.Is(err, errCanaryGone) {
		t.Error(err)
	}
}
