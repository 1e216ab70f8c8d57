package messages_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Peeking at a message never loses it, although RabbitMQ 4.0 to 4.2 drop or dead-letter a message that was received and
// requeued 20 times, unless the queue sets a different limit.
func TestPeekingLosesNothing(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		// The layout has a single delay queue, so that the message stays in it even if a send is slow.
		hour, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: hour})
		l := newLooker(t, v)
		dest := topology.Destination{Queue: "looks"}
		hold := make(chan struct{})
		stop := suite.Consume(t, c, dest.Queue, func(ctx context.Context, d *amqpx.Delivery) error {
			if d.ID == "dead" {
				return amqpx.Reject(errors.New("no"))
			}
			<-hold
			return nil
		})
		suite.Send(t, c, amqpx.Message{ID: "dead", Queue: dest.Queue}, amqpx.Message{ID: "later", Queue: dest.Queue, Delay: time.Hour})
		l.look(t, dest.DeadLetterQueue(), 100)
		close(hold)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		suite.Send(t, c, amqpx.Message{ID: "waits", Queue: dest.Queue})
		l.look(t, dest.Queue, 100)
		l.publish(t, topology.ParkedQueue("delay"), "parked")
		l.look(t, topology.ParkedQueue("delay"), 100)
		l.look(t, "delay.bucket.r2-1h.1h", 30)

		col := newCollector()
		suite.Consume(t, c, dest.Queue, col.handle)
		col.await(t, "the message that was read repeatedly", func(got []*amqpx.Delivery) bool { return len(got) > 0 })
		if got := col.ids(); got["waits"] != 1 || got["later"] != 0 {
			t.Errorf("delivered %v, want only the message waits, once", got)
		}
	})
}

// looker is a plain AMQP client that receives messages and requeues them.
type looker struct{ ch *amqp.Channel }

func newLooker(t *testing.T, v *suite.Vhost) *looker {
	t.Helper()
	ch := v.Channel(t)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &looker{ch}
}

func (l *looker) publish(t *testing.T, exchange, id string) {
	t.Helper()
	confirm, err := l.ch.PublishWithDeferredConfirmWithContext(t.Context(), exchange, id, true, false, amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent,
	})
	if err != nil || !confirm.Wait() {
		t.Fatalf("publish to %s: got %v, want no error and a confirm", exchange, err)
	}
}

// look receives the queue's only message n times and requeues it each time, and checks that it is still in the queue.
func (l *looker) look(t *testing.T, queue string, n int) {
	t.Helper()
	var ids []string
	for range n + 1 {
		suite.Eventually(t, "queue "+queue+" has a message", func() bool {
			d, ok, err := l.ch.Get(queue, false)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				ids = append(ids, d.MessageId)
				if err := d.Nack(false, true); err != nil {
					t.Fatal(err)
				}
			}
			return ok
		})
	}
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("queue %s: read the messages %v, want the same message each time", queue, slices.Compact(ids))
	}
}
