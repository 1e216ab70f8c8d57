package messages_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// Messages whose outcome is unknown are counted in all concurrent batches, and so are messages that were not tried.
func TestSendCountsUnknownOutcomesOfAllBatches(t *testing.T) {
	for _, c := range []struct {
		count, concurrency string
		unknown            int
		want               string
	}{
		{"500", "2", 500, "500 of 500 messages failed (500 with unknown outcome); the first failure (index "},
		{"1000", "1", 256, "256 of 1000 messages failed (256 with unknown outcome), and 744 were not tried; the first failure (index 0): "},
	} {
		b := clitest.NewBroker(t, amqptest.Options{})
		b.Fill(t, "orders", 0)
		confirm := b.Silence("orders")
		r := b.Run(t, "send", "--queue", "orders", "--delay", "0s", "--count", c.count, "--concurrency", c.concurrency, "--timeout", "1s", "--json")
		confirm()
		var out struct{ Sent, Confirmed, Unknown int }
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
			t.Fatalf("%v in %s", err, r)
		}
		if out.Sent != c.unknown || out.Confirmed != 0 || out.Unknown != c.unknown {
			t.Errorf("sent %d, confirmed %d, unknown %d; want %d, 0 and %d", out.Sent, out.Confirmed, out.Unknown, c.unknown, c.unknown)
		}
		if r.Code != 1 || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("got %s\nwant exit code 1 and %q", r, c.want)
		}
	}
}
