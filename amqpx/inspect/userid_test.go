package inspect_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// saved returns saved dead letters from q, one from each of the given users.
func saved(users ...string) *kept {
	k := &kept{}
	for i, user := range users {
		k.list = append(k.list, inspect.SavedMessage{Queue: "q.dead", Message: amqp.Delivery{
			MessageId: string(rune('a' + i)), UserId: user, Body: []byte("b"),
			Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "q", "reason": "rejected", "exchange": "", "routing-keys": []any{"q"}, "count": int64(1)}}},
		}})
	}
	return k
}

// A requeued message keeps its user id if the broker accepts it. The report lists the messages that lose their user
// ids.
func TestRequeueKeepsUserIDs(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", rejects)()
		k := saved("guest", "alice", "", "guest", "alice")
		want := map[string]string{"a": "guest", "b": "", "c": "", "d": "guest", "e": ""}
		dry := c.requeue(inspect.RequeueOptions{From: k.all(), DryRun: true})
		r := c.requeue(inspect.RequeueOptions{From: k.all()})
		if r.Sent != 5 || dry.Sent != 5 {
			t.Fatalf("Requeue of saved messages with user IDs: got %+v and, in the dry run, %+v, want Sent = 5 in both", r, dry)
		}
		for _, rep := range []inspect.RequeueReport{dry, r} {
			if rep.Anonymous != 2 || !slices.Equal(rep.AnonymousIDs, []string{"b", "e"}) {
				t.Errorf("%d messages lost their user ids: %v, want 2: [b e]", rep.Anonymous, rep.AnonymousIDs)
			}
			if !strings.Contains(rep.WhyAnonymous, `user id "alice" only from that user`) {
				t.Errorf(`WhyAnonymous: got %q, want it to contain 'user id "alice" only from that user'`, rep.WhyAnonymous)
			}
		}
		for range want {
			raw, ok, err := m.Channel().Get("q", true)
			if err != nil || !ok {
				t.Fatalf("basic.get: got a message: %t, error %v, want a message and no error", ok, err)
			}
			if raw.UserId != want[raw.MessageId] {
				t.Errorf("message %s has the user id %q, want %q", raw.MessageId, raw.UserId, want[raw.MessageId])
			}
		}
	})
}

// A message that is requeued from a queue keeps its user id as well, and so does one that is copied to the end of the
// queue.
func TestRequeueKeepsUserIDsOfAQueue(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", rejects)()
		m.Declare("theirs", amqp.Table{"x-queue-type": "quorum"})
		m.Publish("", "theirs", amqp.Publishing{MessageId: "a", UserId: "guest", Headers: saved("guest").list[0].Message.Headers})
		m.Publish("", "theirs", amqp.Publishing{MessageId: "b", UserId: "guest"})
		r, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "theirs"})
		if err != nil || r.Sent != 1 || r.Moved != 1 || r.Anonymous != 0 {
			t.Fatalf("Requeue of a queue's messages with user IDs: got %v, %+v, want no error, Sent = 1, Moved = 1 and Anonymous = 0", err, r)
		}
		for _, queue := range []string{"q", "theirs"} {
			raw, _, err := m.Channel().Get(queue, true)
			if err != nil || raw.UserId != "guest" {
				t.Errorf(`message in %s: got the user id %q, error %v, want "guest" and no error`, queue, raw.UserId, err)
			}
		}
	})
}

// A user id that is only in a header, which any publisher can write, is not used. The report counts such a message as
// one that lost its user id.
func TestRequeueCountsUserIDsOfHeaders(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", rejects)()
		k := saved("")
		k.list[0].Message.Headers[header.Carried] = amqp.Table{"user-id": "guest"}
		r := c.requeue(inspect.RequeueOptions{From: k.all()})
		if r.Sent != 1 || r.Anonymous != 1 || !strings.Contains(r.WhyAnonymous, "only the header rabbitdelay-carried contains it") {
			t.Errorf(`Requeue of a message with a user ID in its headers: got %+v, want Sent = 1, Anonymous = 1 and WhyAnonymous with "only the header rabbitdelay-carried contains it"`, r)
		}
		var got collector
		stop := c.consume("q", got.handle)
		inmemory.After(time.Minute)
		stop()
		if all := got.all(); len(all) != 1 {
			t.Errorf("%d messages arrived, want 1", len(all))
		} else if all[0].UserID != "" {
			t.Errorf("the message arrived with the user id %q, want none", all[0].UserID)
		}
	})
}
