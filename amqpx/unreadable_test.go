package amqpx_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// unreadable returns headers that amqp091 can write but not read, by the reason that is reported for them. When amqp091
// receives such headers, it closes the connection.
func unreadable() map[string]amqp.Table {
	deep := amqp.Table{}
	for range 35 {
		deep = amqp.Table{"t": deep}
	}
	wide := amqp.Table{}
	for i := range 9000 {
		wide[fmt.Sprint(i)] = nil
	}
	return map[string]amqp.Table{
		"deeper than 32":      {"a": deep},
		"more than 8192":      {"ids": make([]any, 9000)},
		"elements in a":       wide,
		"longer than a frame": {"a": strings.Repeat("x", 130_800), "b": strings.Repeat("y", 50)},
	}
}

// An unreadable message does not block the messages behind it: Peek reports it with the reason, and a consumer
// dead-letters it.
func TestUnreadable(t *testing.T) {
	for says, headers := range unreadable() {
		t.Run(says, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				other := &collector{}
				others := c.consume("other", other.handle)
				publish := func(id string, headers amqp.Table) {
					m.Publish("", "first", amqp.Publishing{
						MessageId: id, Headers: headers, Body: []byte("of " + id), AppId: "shop",
						ContentType: "text/plain", DeliveryMode: 2,
					})
				}
				// When messages expire from this queue, the broker adds headers, which make long headers too long for a
				// frame.
				m.Declare("first", amqp.Table{"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
				m.Declare("q", amqp.Table{"x-queue-type": "quorum"})
				publish("before", nil)
				publish("bad", headers)
				publish("after", nil)
				after(time.Second)

				peeked, err := inspect.Peek(t.Context(), m.dialed(t), "q", inspect.PeekOptions{})
				if err != nil || ids(peeked) != "before bad after" {
					t.Fatalf(`peek: got %s (%v), want no error and "before bad after"`, ids(peeked), err)
				}
				if l := peeked.Messages[1]; l.Reason != inspect.ReasonUnreadable || !strings.Contains(l.Error, says) || string(l.Body) != "of bad" || l.AppID != "shop" {
					t.Errorf(`peek: reason %s, error %q, body %q, app id %s, want unreadable, an error with %q, "of bad" and shop`,
						l.Reason, l.Error, l.Body, l.AppID, says)
				}

				got := &collector{}
				// One handler at a time receives the messages in order, which concurrent handlers do not guarantee.
				k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
				after(time.Second)
				if ids := got.ids(); strings.Join(ids, " ") != "before after" {
					t.Errorf("the messages %v were handled, want [before after]", ids)
				}
				m.Holds("q", 0, 0)
				dead, err := inspect.Peek(t.Context(), m.dialed(t), "q.dead", inspect.PeekOptions{})
				if err != nil || ids(dead) != "bad" {
					t.Fatalf(`dead letters: got %s (%v), want no error and "bad"`, ids(dead), err)
				}
				l := dead.Messages[0]
				raw, _ := l.Headers[header.Raw].([]byte)
				if l.Reason != inspect.ReasonUnreadable || !strings.Contains(l.Error, says) || l.Destination.Queue != "q" || len(raw) < 200 {
					t.Errorf("dead letter: reason %s, error %q, from queue %q, with %d bytes of headers, want unreadable, an error with %q, q and at least 200 bytes",
						l.Reason, l.Error, l.Destination.Queue, len(raw), says)
				}

				rep, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead"})
				if err != nil || rep.Stayed != 1 {
					t.Errorf("requeue: got %+v, %v, want no error and Stayed = 1", rep, err)
				}
				late := &collector{}
				ks := c.consume("q.dead", late.handle)
				after(time.Second)
				if ids := late.ids(); len(ids) != 1 {
					t.Errorf("a consumer of the dead letters got %v, want one message", ids)
				}
				if s := c.Stats(); s.Consume.Sessions != 1 || s.Publish.Sessions != 1 {
					t.Errorf("the client's connections: got %d sessions for consuming and %d for publishing, want 1 and 1", s.Consume.Sessions, s.Publish.Sessions)
				}
				others.stop()
				k.stop()
				ks.stop()
			})
		})
	}
}

// ids returns the ids of the messages that were read.
func ids(p inspect.Peeked) string {
	var list []string
	for _, m := range p.Messages {
		list = append(list, m.ID)
	}
	return strings.Join(list, " ")
}
