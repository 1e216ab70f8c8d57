package messages_test

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Walking through a whole queue leaves every message in its place, except in a quorum queue before 4.0. It changes only
// the redelivered flag and, before 4.3, the delivery count in a quorum queue.
func TestWalkLeavesEverythingInPlace(t *testing.T) {
	t.Parallel()
	const n, looks = 2500, 2
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		version := plan.ParseVersion(v.Broker.Version())
		for queue, args := range map[string]amqp.Table{
			"quorum.dead": {"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit}, "classic.dead": {"x-queue-type": "classic"},
		} {
			suite.Buries(t, v, queue, "q", n, args)
			suite.Known(t, v, queue)
			conn := lookingInto(t, v)
			for range looks {
				seen := 0
				p, err := inspect.Walk(t.Context(), conn, queue, inspect.PeekOptions{Management: v.Management}, func(inspect.DeadLetter, int) { seen++ })
				if err != nil || seen != n || p.More != 0 {
					t.Fatalf("%s: got %d messages, %v, %+v, want %d, no error and More = 0", queue, seen, err, p, n)
				}
			}
			ch := v.Channel(t)
			moved := queue == "quorum.dead" && version.Before(4, 0, 0)
			counted := queue == "quorum.dead" && version.Before(4, 3, 0)
			for i := range n {
				m, ok, err := ch.Get(queue, true)
				if want := fmt.Sprintf("q-%04d", i); err != nil || !ok || (m.MessageId != want && !moved) || !m.Redelivered {
					t.Fatalf("queue %s: got message %q (ok = %t, error %v), want %s, marked as redelivered", queue, m.MessageId, ok, err, want)
				}
				count, _ := m.Headers["x-delivery-count"].(int64)
				if counted && count < looks { // a slow RabbitMQ 3.10 sometimes counts a return twice
					t.Fatalf("queue %s: message %s has a delivery count of %d after %d reads, want at least the number of reads", queue, m.MessageId, count, looks)
				}
				if !counted && count != 0 {
					t.Fatalf("%s: message %s has a delivery count of %d, want 0", queue, m.MessageId, count)
				}
			}
		}
	})
}
