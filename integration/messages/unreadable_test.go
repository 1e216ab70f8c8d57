package messages_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// If amqp091 cannot read a message's headers, with or without the headers that the broker adds, the connection is not
// lost. Such messages are reported and dead-lettered with their content, and the messages around them are handled.
func TestUnreadableMessages(t *testing.T) {
	t.Parallel()
	deep := amqp.Table{}
	for range 35 {
		deep = amqp.Table{"t": deep}
	}
	bad := map[string]amqp.Table{
		"bad-deep": {"a": deep},
		"bad-many": {"ids": slices.Repeat([]any{int32(7)}, 9000)},
		"bad-long": {"a": strings.Repeat("x", 130_800)},
	}
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		conn, err := inspect.Dial(t.Context(), amqpx.Config{URL: v.URL})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch := v.Channel(t)
		for _, kind := range []string{"classic", "quorum"} {
			first := "first." + kind
			args := amqp.Table{"x-queue-type": kind, "x-message-ttl": int32(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": kind}
			for queue, args := range map[string]amqp.Table{first: args, kind: {"x-queue-type": kind}} {
				if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
					t.Fatalf("queue %s: %v", queue, err)
				}
			}
			want := []string{}
			for i, id := range []string{"bad-deep", "bad-many", "bad-long"} {
				want = append(want, fmt.Sprint("good-", i))
				for id, headers := range map[string]amqp.Table{want[i]: nil, id: bad[id]} {
					if err := ch.PublishWithContext(t.Context(), "", first, false, false, amqp.Publishing{
						MessageId: id, Headers: headers, Body: []byte(id), DeliveryMode: amqp.Persistent,
					}); err != nil {
						t.Fatalf("%s: %v", id, err)
					}
				}
			}
			suite.Eventually(t, "all 6 messages are in "+kind, func() bool {
				q, err := ch.QueueDeclarePassive(kind, true, false, false, false, nil)
				return err == nil && q.Messages == 6
			})
			unreadable := func(queue string, letters int) {
				t.Helper()
				ch, err := conn.Channel()
				if err != nil {
					t.Fatalf("%s: %v", kind, err)
				}
				defer ch.Close() // closing the channel puts the messages back
				n := 0
				for range letters {
					raw, ok, err := ch.Get(queue, false)
					if err != nil || !ok {
						t.Fatalf("%s: got %v, %v, want no error and ok = true", queue, ok, err)
					}
					l := inspect.ReadDeadLetter(raw, queue, "delay")
					given, _ := l.Headers["rabbitdelay-raw-headers"].([]byte)
					if l.Reason == inspect.ReasonUnreadable && string(l.Body) == l.ID && strings.HasPrefix(l.ID, "bad-") && len(given) > 200 {
						n++
					}
				}
				if n != 3 {
					t.Errorf("queue %s: %d of %d messages are unreadable, want 3", queue, n, letters)
				}
			}
			unreadable(kind, 6)
			col := newCollector()
			suite.Consume(t, c, kind, col.handle)
			suite.Eventually(t, "the 3 readable messages are handled", func() bool { return len(col.ids()) == 3 })
			suite.Eventually(t, "queue "+kind+".dead has 3 messages", func() bool {
				q, err := c.QueueInfo(t.Context(), kind+".dead")
				return err == nil && q.Ready == 3
			})
			unreadable(kind+".dead", 3)
			for _, id := range want {
				if col.ids()[id] != 1 {
					t.Errorf("message %s was handled %d times, want 1", id, col.ids()[id])
				}
			}
		}
		if s := c.Stats(); s.Consume.Sessions != 1 {
			t.Errorf("the consumer opened %d sessions, want 1", s.Consume.Sessions)
		}
	})
}
