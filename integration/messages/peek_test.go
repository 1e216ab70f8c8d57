package messages_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// lookingInto returns a connection for looking into queues.
func lookingInto(t *testing.T, v *suite.Vhost) *amqp.Connection {
	t.Helper()
	conn, err := inspect.Dial(t.Context(), amqpx.Config{URL: v.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A hundred peeks lose no message and leave the order as it is, even where the queue has a delivery
// limit of 20. There, peeks are refused if they would count against the limit.
func TestPeekUsesNoDeliveryLimit(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		version, conn := plan.ParseVersion(v.Broker.Version()), lookingInto(t, v)
		ch, err := v.Conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]string{"limited": nil, "plain": nil, "classic": nil, "unlimited": nil}
		for queue := range want {
			args := amqp.Table{"x-queue-type": "quorum"}
			switch queue {
			case "limited":
				args["x-delivery-limit"] = int32(20)
			case "unlimited":
				args["x-delivery-limit"] = topology.NoDeliveryLimit
			case "classic":
				args["x-queue-type"] = "classic"
			}
			if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				id := fmt.Sprint(queue, i)
				want[queue] = append(want[queue], id)
				if err := ch.PublishWithContext(t.Context(), "", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for queue, want := range want {
			suite.Eventually(t, "the messages", func() bool {
				q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err == nil && q.Messages == 5
			})
			suite.Known(t, v, queue)
			refused := queue == "limited" && version.Before(4, 3, 0) || queue == "plain" && version.AtLeast(4, 0, 0) && version.Before(4, 3, 0)
			for look := range 25 { // more than any delivery limit here
				got, err := inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{Management: v.Management})
				switch {
				case refused && !errors.Is(err, inspect.ErrPeek):
					t.Fatalf("%s, look %d: got %v, want ErrPeek", queue, look, err)
				case !refused && (err != nil || idsOf(got) != strings.Join(want, " ")):
					t.Fatalf("%s, look %d: %s (%v), want %v", queue, look, idsOf(got), err, want)
				}
				if refused || version.Before(4, 0, 0) { // such a queue puts messages that were read at its end
					continue
				}
				got, err = inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{Limit: 2, Management: v.Management})
				switch ids := strings.Join(want[:2], " "); {
				case err != nil:
					t.Fatalf("%s: peeking at %d of two messages: %v", queue, look, err)
				case got.More != 3:
					t.Fatalf("%s, look %d at two: %d more, want 3", queue, look, got.More)
				case idsOf(got) != ids:
					t.Fatalf("%s, look %d at two: got %s, want %s", queue, look, idsOf(got), ids)
				}
			}
			for _, id := range want { // unmoved, or at least present and in order
				m, ok, err := ch.Get(queue, true)
				if err != nil || !ok || m.MessageId != id {
					t.Fatalf("%s: %q (%v, %v), want %s", queue, m.MessageId, ok, err, id)
				}
				if n := m.Headers["x-delivery-count"]; queue == "limited" && n != nil && n != int64(0) {
					t.Errorf("%s: %s has a delivery count of %v", queue, id, n)
				}
			}
		}
	})
}

func idsOf(p inspect.Peeked) string {
	ids := make([]string, len(p.Messages))
	for i, m := range p.Messages {
		ids[i] = m.ID
	}
	return strings.Join(ids, " ")
}

// Messages that were peeked at are back in the queue when Peek returns: a requeue that begins then
// finds them.
func TestPeekIsDoneWhenItReturns(t *testing.T) {
	t.Parallel()
	const n = 100
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		ready, conn := readyIn(t, v), lookingInto(t, v)
		suite.Buries(t, v, "q.dead", "q", n, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		suite.Known(t, v, "q.dead")
		for look := range 50 {
			got, err := inspect.Peek(t.Context(), conn, "q.dead", inspect.PeekOptions{Limit: n, Management: v.Management})
			if err != nil || len(got.Messages) != n {
				t.Fatalf("look %d: %d messages (%v), want no error and %d", look, len(got.Messages), err, n)
			}
			if got := ready("q.dead"); got != n {
				t.Errorf("after look %d there are %d messages, want %d", look, got, n)
			}
		}
	})
}
