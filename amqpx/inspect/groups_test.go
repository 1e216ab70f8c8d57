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

// layDead puts dead letters into q.dead, a second apart, with the errors that a function returns.
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

func group(t *testing.T, m *memory, o inspect.GroupOptions) inspect.ErrorGroups {
	t.Helper()
	o.Management = limitedTo(m, fmt.Sprint(topology.NoDeliveryLimit))
	g, err := inspect.GroupErrors(t.Context(), m.dialed(t), "q.dead", o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A whole queue is grouped by errors, in each order, and is unchanged afterwards.
func TestGroupErrors(t *testing.T) {
	inEachVersion(t, func(t *testing.T, m *memory) {
		const n = 3000 // several portions
		first := layDead(m, n, func(i int) string {
			switch {
			case i == 0:
				return "disk full"
			case i < 2000:
				return fmt.Sprintf("order %d was not found", i)
			}
			return fmt.Sprintf("no such customer: %q", fmt.Sprint(i))
		})
		was := m.IDs("q.dead")
		for order, want := range map[inspect.GroupOrder][]string{
			"":                   {"no such customer: … 1000", "order # was not found 1999", "disk full 1"},
			inspect.GroupsOldest: {"disk full 1", "order # was not found 1999", "no such customer: … 1000"},
			inspect.GroupsMost:   {"order # was not found 1999", "no such customer: … 1000", "disk full 1"},
		} {
			g := group(t, m, inspect.GroupOptions{Order: order})
			var got []string
			for _, x := range g.Groups {
				got = append(got, fmt.Sprint(x.ErrorLike, " ", x.Messages))
			}
			if !slices.Equal(got, want) || g.Total != n || g.Sampled != n || g.Others != 0 || g.AtLeast {
				t.Errorf("%s: %q, want %q; %+v", order, got, want, g)
			}
		}
		m.Holds("q.dead", n, 0)
		if now := m.IDs("q.dead"); !slices.Equal(now, was) {
			t.Error("the messages have changed their order")
		}
		g := group(t, m, inspect.GroupOptions{Order: inspect.GroupsMost, Limit: 1})
		if g.Others != 1001 || len(g.Groups) != 1 {
			t.Fatalf("got %+v, want Others = 1001 and len(g.Groups) = 1", g)
		}
		x := g.Groups[0]
		if x.Destination != "q" || x.Reason != inspect.ReasonAttempts || !x.First.Equal(first.Add(time.Second)) || !x.Last.Equal(first.Add(1999*time.Second)) ||
			x.ExampleID != "1999" || x.Example != "order 1999 was not found" {
			t.Errorf("got %+v, want the group of q with message 1999 as its example", x)
		}
		f := inspect.DeadLetterFilter{Destinations: []string{x.Destination}, Reasons: []string{x.Reason}, ErrorLike: x.ErrorLike}
		c := m.open(amqpx.Config{})
		if r := c.requeue(inspect.RequeueOptions{Queue: "q.dead", DryRun: true, Filter: f}); r.Chosen != x.Messages {
			t.Errorf("a filter of the group chooses %d, want %d", r.Chosen, x.Messages)
		}
	})
}

// The number of groups is bounded, whatever the queue contains, and the large groups are kept.
func TestGroupErrorsIsBounded(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		const n = 4000
		layDead(m, n, func(i int) string {
			if i%4 == 3 {
				return "timeout"
			}
			word := []byte("aaaaaa")
			for at := 0; i > 0; i /= 26 {
				word[at] += byte(i % 26)
				at++
			}
			return string(word)
		})
		g := group(t, m, inspect.GroupOptions{Order: inspect.GroupsMost, Limit: inspect.MaxGroups})
		sum := g.Others
		for _, x := range g.Groups {
			sum += x.Messages
		}
		if sum != n || !g.AtLeast || len(g.Groups) > inspect.MaxGroups || g.Groups[0].ErrorLike != "timeout" || g.Groups[0].Messages != n/4 {
			t.Errorf(`%d of %d messages, %d groups, first %+v, want AtLeast = true, at most inspect.MaxGroups, Groups[0].ErrorLike = "timeout" and Groups[0].Messages = %v`,
				sum, n, len(g.Groups), g.Groups[0], n/4)
		}
	})
}

// If GroupErrors is interrupted, it puts everything back.
func TestGroupErrorsInterrupted(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		layDead(m, 2000, func(int) string { return "x" })
		was := m.IDs("q.dead")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := inspect.GroupErrors(ctx, m.dialed(t), "q.dead", inspect.GroupOptions{Progress: func(looked, _ int) {
			if looked > 500 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		m.Holds("q.dead", 2000, 0)
		if now := m.IDs("q.dead"); !slices.Equal(now, was) {
			t.Error("the messages have changed their order")
		}
	})
}

func TestGroupErrorsRefuses(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.Declare("limited", amqp.Table{"x-queue-type": "quorum"})
		conn := m.dialed(t)
		for _, queue := range []string{"limited", "delay.bucket.1m"} {
			if _, err := inspect.GroupErrors(t.Context(), conn, queue, inspect.GroupOptions{}); !errors.Is(err, inspect.ErrPeek) {
				t.Errorf("%s: got %v, want inspect.ErrPeek", queue, err)
			}
		}
		for _, o := range []inspect.GroupOptions{{Limit: inspect.MaxGroups + 1}, {Limit: -1}, {Order: "largest"}} {
			if _, err := inspect.GroupErrors(t.Context(), conn, "q", o); err == nil || errors.Is(err, inspect.ErrPeek) {
				t.Errorf("%+v: got %v, want an error and not inspect.ErrPeek", o, err)
			}
		}
	})
	inMemory(t, func(t *testing.T, m *memory) {
		_, err := inspect.GroupErrors(t.Context(), m.dialed(t), "missing", inspect.GroupOptions{})
		if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != amqp.NotFound {
			t.Error(err)
		}
	})
}
