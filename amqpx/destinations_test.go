package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If declaring a destination makes the broker close the connection, messages for it fail permanently after a short
// time, and no message for another destination is lost.
func TestDestinationThatEndsTheConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{Queue: "good"})
		publishing := m.Connections()[0]
		confirm := m.Silence("good")
		sent := c.sending(amqpx.Message{ID: "under way", Queue: "good"})

		m.Refuse("bad", amqp.InternalError, "Cannot declare quorum queue 'bad' in vhost '/' on node 'rabbit@a' with leader on node 'rabbit@a': cluster_not_formed")
		began := time.Now()
		err := c.Send(t.Context(), amqpx.Message{Queue: "bad"})
		if !errors.Is(err, topology.ErrDestination) || !strings.Contains(err.Error(), "541") || !strings.Contains(err.Error(), "docs/operations.md") {
			t.Errorf(`Send to the invalid destination: got %v, want topology.ErrDestination with "541" and "docs/operations.md"`, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Send took %v, want at most 5s", took)
		}
		confirm()
		if err := <-sent; err != nil {
			t.Errorf("Send to the valid destination: got %v, want no error", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "another"}); err != nil {
			t.Errorf("Send to another destination: got %v, want no error", err)
		}
		if now := m.Connections()[0]; now.Name != publishing.Name {
			t.Errorf("the publishing connection is %+v, want %+v as before", now, publishing)
		}
		m.Holds("good", 2, 0)
	})
}

// Check returns the errors of Send that do not depend on the broker, even for a destination that is not listed.
func TestCheckOfUnlistedDestinations(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{{Queue: "listed"}}})
		for _, delay := range []time.Duration{0, time.Minute} {
			for _, msg := range []amqpx.Message{
				{Queue: "listed"}, {RoutingKey: "listed.dead"}, {Queue: "other"}, {RoutingKey: "other"},
				{Exchange: "amq.topic", RoutingKey: "k"},
			} {
				msg.Delay = delay
				sent, _ := errors.AsType[*topology.DestinationError](c.Send(t.Context(), msg))
				checked, _ := errors.AsType[*topology.DestinationError](c.Check(msg))
				if fmt.Sprint(checked) != fmt.Sprint(sent) {
					t.Errorf("%+v: Check returned %v, want the error of Send: %v", msg, checked, sent)
				}
			}
		}
	})
}

// Whether the error of a destination is final depends on the broker's reason.
func TestDestinationsThatCannotBeUsed(t *testing.T) {
	for name, test := range map[string]struct {
		code   int
		text   string
		says   string
		within time.Duration // how long it takes until the error is final; zero for a temporary error
	}{
		"exclusive to another": {
			amqp.ResourceLocked, "cannot obtain exclusive access to locked queue 'q' in vhost '/'",
			"exclusive to another connection", 100 * time.Millisecond,
		},
		"not allowed":    {amqp.AccessRefused, "configure access to queue 'q' in vhost '/' refused for user 'u'", "docs/permissions.md", 3 * time.Second},
		"reserved":       {amqp.AccessRefused, "queue name 'q' contains reserved prefix 'amq.*'", "reserves", 100 * time.Millisecond},
		"over a limit":   {amqp.PreconditionFailed, "cannot declare queue 'q': queue limit in vhost '/' (10) is reached", "queue limit", 100 * time.Millisecond},
		"node down":      {amqp.NotFound, "home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible", "is down", 0},
		"metadata store": {amqp.PreconditionFailed, "timed out", "timed out", 0},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				undo := m.Refuse("q", test.code, test.text)
				began := time.Now()
				err := c.Send(m.within(5*time.Second), amqpx.Message{Queue: "q"})
				if !errors.Is(err, amqpx.ErrNotSent) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Send: got %v, want amqpx.ErrNotSent with %q", err, test.says)
				}
				if _, final := errors.AsType[*topology.DestinationError](err); final != (test.within > 0) || final == errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Send: got %v (a DestinationError: %t), want a DestinationError: %t, and otherwise context.DeadlineExceeded", err, final, test.within > 0)
				}
				if test.within > 0 {
					if took := time.Since(began); took > test.within {
						t.Errorf("Send took %v, want at most %v", took, test.within)
					}
					again := time.Now()
					if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err == nil || time.Since(again) > 0 {
						t.Errorf("Send right after the failure: got %v after %v, want an error immediately", err, time.Since(again))
					}
				}
				undo()
				after(2 * time.Second)
				if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
					t.Errorf("Send after the broker accepts the destination again: got %v, want no error", err)
				}
			})
		})
	}
}

// A destination that is refused only for a moment, as by a starting broker, is tried again.
func TestDestinationThatIsRefusedForAMoment(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		time.AfterFunc(time.Second, m.Deny("", amqptest.PermissionConfigure, "^q$"))
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
			t.Error(err)
		}
	})
}

// A destination whose declaration gets no answer does not delay messages to another destination.
func TestDestinationThatDoesNotAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		undo := m.Lose("queue.declare", "q")
		sent := c.sending(amqpx.Message{Queue: "q"})
		began := time.Now()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "other"}); err != nil || time.Since(began) > 0 {
			t.Errorf("Send to another queue returned %v after %v, want nil after 0s", err, time.Since(began))
		}
		undo()
		if err := <-sent; err != nil {
			t.Errorf("Send that waited %v for the broker's answer: got %v, want no error", time.Since(began), err)
		}
		if got := m.connections(" declare"); len(got) > 1 {
			t.Errorf("the client has the declare connections %v, want at most one, because the one that did not answer must be closed", got)
		}
	})
}

// MaxRouteQueues limits the number of route queues, for example if routing keys contain order numbers.
func TestMaxRouteQueues(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		there := amqpx.Message{Exchange: "amq.topic", RoutingKey: "there", Delay: time.Second}
		m.open(amqpx.Config{}).mustSend(there)
		c := m.open(amqpx.Config{MaxRouteQueues: 3})
		before := len(m.Queues())
		var failed error
		for i := range 10 {
			err := c.Send(t.Context(), amqpx.Message{Exchange: "amq.topic", RoutingKey: fmt.Sprintf("order.%d", i), Delay: time.Second})
			if (err != nil) != (i >= 3) {
				t.Errorf("key %d: got %v, want an error: %t", i, err, i >= 3)
			}
			failed = err
		}
		if _, ok := errors.AsType[*topology.DestinationError](failed); !ok || !strings.Contains(failed.Error(), "MaxRouteQueues") {
			t.Errorf(`Send beyond MaxRouteQueues: got %v, want a *topology.DestinationError with "MaxRouteQueues"`, failed)
		}
		if got := len(m.Queues()) - before; got != 3 {
			t.Errorf("%d route queues were declared, want 3", got)
		}
		for _, msg := range []amqpx.Message{there, {Exchange: "amq.topic", RoutingKey: "order.0", Delay: time.Second}, {Queue: "q"}} {
			if err := c.Send(t.Context(), msg); err != nil {
				t.Errorf("Send to an existing route queue or to a queue: got %v, want no error", err)
			}
		}
	})
}

// An exchange receives its message with the routing key after the delay. It must exist when the message is sent.
func TestExchangeDestinations(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		if err := c.Send(t.Context(), amqpx.Message{Exchange: "events", RoutingKey: "k"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("Send to an exchange that does not exist: got %v, want ErrDestination", err)
		}
		err := c.Apply(t.Context(), topology.Topology{
			Exchanges: []topology.Exchange{{Name: "events", Kind: "topic"}},
			Queues:    []topology.Queue{{Name: "audit"}},
			Bindings:  []topology.Binding{{Exchange: "events", Queue: "audit", RoutingKey: "order.*"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.mustSend(amqpx.Message{Exchange: "events", RoutingKey: "order.paid", Delay: time.Hour})
		after(2 * time.Hour)
		q := m.State("audit")
		if q.Ready != 1 || q.Messages[0].RoutingKey != "order.paid" || q.Messages[0].Exchange != "events" {
			t.Errorf("the queue behind the exchange has %+v, want one message with its exchange and routing key", q.Messages)
		}
	})
}
