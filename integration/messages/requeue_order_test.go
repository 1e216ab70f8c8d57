package messages_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Messages that a requeue leaves behind keep their order, even if there are more than a quorum
// queue puts back at a time (32 batches of 250). Before RabbitMQ 4.0, a quorum queue puts them back
// at its end.
func TestRequeueKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const n, queue = 9000, "quorum.dead"
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		if plan.ParseVersion(v.Broker.Version()).Before(4, 0, 0) {
			t.Skip("skipped: before 4.0, the order of the messages changes")
		}
		suite.Buries(t, v, queue, "q", n, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		suite.Known(t, v, queue)
		client := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		gone := []string{"q-0000", "q-0249", "q-0250", "q-4711", "q-8999"} // including the first and last message of each batch
		rep, err := inspect.Requeue(t.Context(), client, inspect.RequeueOptions{
			Queue: queue, Filter: inspect.DeadLetterFilter{IDs: gone}, Discard: true, InFlight: 3, Management: v.Management,
		})
		if err != nil || rep.Discarded != len(gone) || rep.PutBack != n-len(gone) {
			t.Fatalf("got %v, %+v, want no error, Discarded = %v and PutBack = %v", err, rep, len(gone), n-len(gone))
		}
		ids := suite.Drains(t, v, queue)
		if len(ids) != n-len(gone) {
			t.Errorf("%d messages are left, want %d", len(ids), n-len(gone))
		}
		for i := range ids[1:] {
			if ids[i] >= ids[i+1] {
				t.Fatalf("message %q follows %q, want ascending ids", ids[i+1], ids[i])
			}
		}
	})
}
