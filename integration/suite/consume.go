package suite

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Send sends messages, or fails the test.
func Send(t testing.TB, c *amqpx.Client, msgs ...amqpx.Message) {
	t.Helper()
	if err := c.SendBatch(t.Context(), msgs); err != nil {
		t.Fatal(err)
	}
}
