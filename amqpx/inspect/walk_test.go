package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// layDead publishes n dead letters to q.dead, which died a second apart, with the errors that text returns. It returns
// the time of the first one.
func layDead(m *memory, n int, text func(i int) string) (first time.Time) {
	m.Helper()
	m.Declare("q.dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
	first = time.Now().UTC().Add(-time.Duration(n) * time.Second).Truncate(time.Second)
	for i := range n {
		at := first.Add(time.Duration(i) * time.Second)
		m.Publish("", "q.dead", amqp.Publishing{MessageId: fmt.Sprint(i), Headers: amqp.Table{
			amqpx.HeaderReason: inspect.ReasonAttempts, amqpx.HeaderQueue: "q", amqpx.HeaderError: text(i),
			amqpx.HeaderAttempts: []any{at.Format(time.RFC3339Nano) + " x"},
		}})
	}
	inmemory.After(time.Second)
	return first
}

// walk returns the messages that Walk reads from q.dead, and its result.
func walk(t *testing.T, m *memory) (list []inspect.DeadLetter, p inspect.Peeked) {
	t.Helper()
	o := inspect.PeekOptions{Management: limitedTo(m, fmt.Sprint(topology.NoDeliveryLimit))}
	p, err := inspect.Walk(t.Context(), m.dialed(t), "q.dead", o, func(l inspect.DeadLetter, _ int) { list = append(list, l) })
	if err != nil {
		t.Fatal(err)
	}
	return list, p
}

// Walk reads the whole queue and leaves it unchanged.
func TestWalk(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		const n = 3000 // more than one batch
		first := layDead(m, n, func(i int) string { return fmt.Sprintf("order %d was not found", i) })
		was := m.IDs("q.dead")
		list, p := walk(t, m)
		m.Holds("q.dead", n, 0)
		if now := m.IDs("q.dead"); !slices.Equal(now, was) {
			t.Errorf("after Walk: got the messages %q, want them as before: %q", now, was)
		}
		if p.Queue != "q.dead" || p.More != 0 || len(p.Messages) != 0 {
			t.Errorf("Walk: got %+v, want q.dead without messages and More = 0", p)
		}
		if len(list) != n {
			t.Fatalf("Walk: got %d messages, want %d", len(list), n)
		}
		for i, l := range list {
			if l.ID != fmt.Sprint(i) || l.Error != fmt.Sprintf("order %d was not found", i) || !l.Died.Equal(first.Add(time.Duration(i)*time.Second)) {
				t.Fatalf("message %d: got %+v, want the id, the error and the time of death with this number", i, l)
			}
		}
	})
}

// An interrupted Walk returns all messages to the queue.
func TestWalkInterrupted(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		layDead(m, 2000, func(int) string { return "x" })
		was := m.IDs("q.dead")
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		_, err := inspect.Walk(ctx, m.dialed(t), "q.dead", inspect.PeekOptions{}, func(_ inspect.DeadLetter, total int) {
			if total != 2000 {
				t.Fatalf("Walk: got a total of %d, want 2000", total)
			}
			if n++; n > 500 {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Walk with a cancelled context: got %v, want context.Canceled", err)
		}
		m.Holds("q.dead", 2000, 0)
		if now := m.IDs("q.dead"); !slices.Equal(now, was) {
			t.Errorf("after Walk: got the messages %q, want them as before: %q", now, was)
		}
	})
}

func TestWalkRefuses(t *testing.T) {
	none := func(l inspect.DeadLetter, _ int) { t.Errorf("message %s was read, want none", l.ID) }
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.Declare("limited", amqp.Table{"x-queue-type": "quorum"})
		conn := m.dialed(t)
		for _, queue := range []string{"limited", "delay.bucket.1m"} {
			if _, err := inspect.Walk(t.Context(), conn, queue, inspect.PeekOptions{}, none); !errors.Is(err, inspect.ErrPeek) {
				t.Errorf("Walk of the queue %s: got %v, want inspect.ErrPeek", queue, err)
			}
		}
	})
	inMemory(t, func(t *testing.T, m *memory) {
		_, err := inspect.Walk(t.Context(), m.dialed(t), "missing", inspect.PeekOptions{}, none)
		if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != amqp.NotFound {
			t.Errorf("Walk of a queue that does not exist: got %v, want an *amqp.Error with code 404", err)
		}
	})
}
