package suite

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// Requeuer returns a client with few queues.
func Requeuer(t *testing.T, v *Vhost) *amqpx.Client {
	t.Helper()
	s, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	return OpenClient(t, amqpx.Config{URL: v.URL, Strategy: s})
}

// Buries declares a queue and publishes n messages to it. Their headers say that they were dead-lettered from the queue
// named by died.
func Buries(t *testing.T, v *Vhost, queue, died string, n int, args amqp.Table) {
	t.Helper()
	ch := v.Channel(t)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirms := make([]*amqp.DeferredConfirmation, n)
	for i := range n {
		var err error
		confirms[i], err = ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			MessageId: fmt.Sprintf("%s-%04d", died, i), DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: died, "n": fmt.Sprint(i)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dc := range confirms {
		if !dc.Wait() {
			t.Fatalf("publishing to queue %s: got no confirm, want one", queue)
		}
	}
}

// Drains removes all messages from a queue and returns their IDs in order.
func Drains(t *testing.T, v *Vhost, queue string) (ids []string) {
	t.Helper()
	ch := v.Channel(t)
	for {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Messages == 0 {
			return ids
		}
		from, err := ch.ConsumeWithContext(t.Context(), queue, "drains", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range q.Messages {
			d := <-from
			ids = append(ids, d.MessageId)
		}
		if err := ch.Cancel("drains", false); err != nil {
			t.Fatal(err)
		}
		for d := range from {
			ids = append(ids, d.MessageId)
		}
	}
}

// Makes declares a durable queue.
func Makes(t *testing.T, v *Vhost, queue string, args amqp.Table) {
	t.Helper()
	if _, err := v.Channel(t).QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

// QuorumQueue is the set of arguments of a quorum queue.
var QuorumQueue = amqp.Table{"x-queue-type": "quorum"}

// Known waits until the management API reports the queue's policies, on versions where inspection depends on them.
func Known(t *testing.T, v *Vhost, queue string) {
	t.Helper()
	if plan.ParseVersion(v.Broker.Version()).AtLeast(4, 3, 0) {
		return
	}
	Eventually(t, "the policies of "+queue+" are known", func() bool {
		q, err := v.Mgmt.Queue(t.Context(), queue)
		MustSucceed(t, err)
		return q.EffectivePolicy != nil
	})
}
