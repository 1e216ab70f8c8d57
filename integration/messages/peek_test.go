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

// lookingInto returns a connection for peeking at queues.
func lookingInto(t *testing.T, v *suite.Vhost) *amqp.Connection {
	t.Helper()
	conn, err := inspect.Dial(t.Context(), amqpx.Config{URL: v.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Many peeks lose no message and keep the order, even if the queue has a delivery limit of 20. A peek is refused if it
// would count against the limit.
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
			suite.Eventually(t, "all 5 messages are in "+queue, func() bool {
				q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err == nil && q.Messages == 5
			})
			suite.Known(t, v, queue)
			refused := queue == "limited" && version.Before(4, 3, 0) || queue == "plain" && version.AtLeast(4, 0, 0) && version.Before(4, 3, 0)
			for look := range 25 { // more than any delivery limit here
				got, err := inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{Management: v.Management})
				switch {
				case refused && !errors.Is(err, inspect.ErrPeek):
					t.Fatalf("%s, peek %d: got error %v, want inspect.ErrPeek", queue, look, err)
				case !refused && (err != nil || idsOf(got) != strings.Join(want, " ")):
					t.Fatalf("%s, peek %d: got %s (error %v), want %v", queue, look, idsOf(got), err, want)
				}
				if refused || version.Before(4, 0, 0) { // before 4.0, a queue puts messages that were read at its end
					continue
				}
				got, err = inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{Limit: 2, Management: v.Management})
				switch ids := strings.Join(want[:2], " "); {
				case err != nil:
					t.Fatalf("%s, peek %d at two messages: got error %v, want nil", queue, look, err)
				case got.More != 3:
					t.Fatalf("%s, peek %d at two messages: got More = %d, want 3", queue, look, got.More)
				case idsOf(got) != ids:
					t.Fatalf("%s, peek %d at two messages: got %s, want %s", queue, look, idsOf(got), ids)
				}
			}
			for _, id := range want { // all messages are still in the queue and in order
				m, ok, err := ch.Get(queue, true)
				if err != nil || !ok || m.MessageId != id {
					t.Fatalf("queue %s: got message %q (ok = %t, error %v), want %s", queue, m.MessageId, ok, err, id)
				}
				if n := m.Headers["x-delivery-count"]; queue == "limited" && n != nil && n != int64(0) {
					t.Errorf("queue %s: message %s has a delivery count of %v, want 0", queue, id, n)
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

// When Peek returns, the messages are back in the queue, so a requeue that starts immediately finds them.
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
				t.Fatalf("peek %d: got %d messages (error %v), want %d and no error", look, len(got.Messages), err, n)
			}
			if got := ready("q.dead"); got != n {
				t.Errorf("after peek %d the queue has %d ready messages, want %d", look, got, n)
			}
		}
	})
}
