package suite

import (
	"context"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Send sends messages. It fails the test on an error.
func Send(t testing.TB, c *amqpx.Client, msgs ...amqpx.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	if err := c.SendBatch(ctx, msgs); err != nil {
		t.Fatal(err)
	}
}
