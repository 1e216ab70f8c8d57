package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A message whose handler fails is retried with growing pauses, and then dead-lettered with the reason. A rejected
// message is dead-lettered immediately, and RetryIn sets the pause.
func TestRetriesAndDeadLetters(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		began := time.Now()
		got := collector{answer: func(d *amqpx.Delivery) error {
			switch {
			case d.ID == "rejected":
				return amqpx.Reject(errors.New("no good"))
			case d.ID == "later" && d.Attempt == 1:
				return amqpx.RetryIn(time.Hour, errors.New("not now"))
			case d.ID == "later":
				return nil
			case d.ID == "panics":
				panic("oh")
			}
			return errors.New("never works")
		}}
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{
			MaxAttempts: 3, Backoff: time.Minute, Multiplier: 2, Jitter: -1,
		}), amqpx.WithDeadLetterQueue("graveyard"), amqpx.WithPrefetch(5))
		for _, id := range []string{"fails", "rejected", "later", "panics"} {
			c.mustSend(amqpx.Message{ID: id, Queue: "q", Body: []byte(id)})
		}
		after(3 * time.Hour)
		k.stop()
		tries, counts := got.since(began), map[string]int{}
		for id, at := range tries {
			counts[id] = len(at)
		}
		if want := map[string]int{"fails": 3, "rejected": 1, "later": 2, "panics": 3}; !maps.Equal(counts, want) {
			t.Fatalf("the messages were handled in this many attempts: %v, want %v", counts, want)
		}
		for i, pause := range []time.Duration{time.Minute, 2 * time.Minute} {
			if got := tries["fails"][i+1] - tries["fails"][i]; got < pause || got > pause+time.Second {
				t.Errorf("pause %d: got %v, want %v to %v", i, got, pause, pause+time.Second)
			}
		}
		if got := tries["later"][1] - tries["later"][0]; got < time.Hour || got > time.Hour+time.Second {
			t.Errorf("the retry after RetryIn(1h) arrived after %v, want 1h to %v", got, time.Hour+time.Second)
		}
		reasons := map[string]any{}
		for _, msg := range m.State("graveyard").Messages {
			reasons[msg.MessageId] = msg.Headers[amqpx.HeaderReason]
			if string(msg.Body) != msg.MessageId {
				t.Errorf("message %s has the body %s, want its id", msg.MessageId, msg.Body)
			}
		}
		if want := map[string]any{"fails": inspect.ReasonAttempts, "rejected": inspect.ReasonRejected, "panics": inspect.ReasonAttempts}; !maps.Equal(reasons, want) {
			t.Errorf("the dead letters have the reasons %v, want %v", reasons, want)
		}
		outcomes := map[amqpx.Outcome]int{}
		for _, outcome := range o.saw().outcomes {
			outcomes[outcome]++
		}
		if want := map[amqpx.Outcome]int{amqpx.OutcomeAcked: 1, amqpx.OutcomeRetried: 5, amqpx.OutcomeDeadLettered: 3}; !maps.Equal(outcomes, want) {
			t.Errorf("the handlers have the outcomes %v, want %v", outcomes, want)
		}
	})
}

// Reject and RetryIn work even if their errors are wrapped or joined. RetryIn works with any delay.
func TestFatesInsideErrors(t *testing.T) {
	no := errors.New("no")
	for name, test := range map[string]struct {
		err error
		in  string // the queue that contains the message a second later
	}{
		"reject, joined":   {errors.Join(no, amqpx.Reject(no)), "q.dead"},
		"reject, wrapped":  {fmt.Errorf("x: %w", amqpx.Reject(no)), "q.dead"},
		"reject and retry": {errors.Join(amqpx.RetryIn(time.Hour, no), amqpx.Reject(no)), "q.dead"},
		"retry, joined":    {errors.Join(no, amqpx.RetryIn(time.Hour, no)), "delay.bucket.1h"},
		"retry for ever":   {amqpx.RetryIn(math.MaxInt64, no), "delay.bucket.352d"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				k := c.consume("q", func(ctx context.Context, d *amqpx.Delivery) error {
					if d.Attempt > 1 {
						<-ctx.Done()
					}
					return test.err
				}, amqpx.WithDrainTimeout(0))
				c.mustSend(amqpx.Message{Queue: "q"})
				after(time.Second)
				if q := m.State(test.in); q.Ready+q.Unacked != 1 {
					t.Errorf("%d messages are in %s, want 1", q.Ready+q.Unacked, test.in)
				}
				k.stop()
			})
		})
	}
}

// A handler that ends its goroutine, as t.FailNow does in a user's test, affects only its own attempt.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.ID == "bad" {
				runtime.Goexit()
			}
			return nil
		}}
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
		c.mustSend(amqpx.Message{ID: "bad", Queue: "q"}, amqpx.Message{ID: "good", Queue: "q"})
		after(time.Minute)
		dead := m.State("q.dead").Messages
		if len(dead) != 1 || !strings.Contains(fmt.Sprint(dead[0].Headers[amqpx.HeaderError]), "FailNow") {
			t.Errorf(`queue q.dead: got %v, want one dead letter whose error header has "FailNow"`, dead)
		}
		m.Holds("q", 0, 0)
		k.stop()
	})
}

// If the broker has taken a message back from a handler, that handler's retry is not published. The broker delivers the
// message again anyway, and otherwise each delivery would start another chain of retries. On RabbitMQ 4.3, the
// redelivery counts as the second attempt, which is published as a new message.
func TestNoRetryOfALostDelivery(t *testing.T) {
	for version, want := range map[string][]int{"3.10.8": {1, 1}, "4.0.5": {1, 1}, "4.3.0": {1, 2}} {
		inMemoryOf(t, amqptest.Options{Version: version, ConsumerTimeout: time.Minute}, func(t *testing.T, m *memory) {
			c, o := m.watched(amqpx.Config{})
			got := collector{answer: func(d *amqpx.Delivery) error {
				if d.Redelivered || d.Attempt > 1 {
					return nil
				}
				<-time.After(10 * time.Minute)
				return errors.New("too late")
			}}
			k := c.consume("q", got.handle)
			c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
			after(time.Hour)
			if attempts := got.attempts(); !slices.Equal(attempts, want) {
				t.Errorf("RabbitMQ %s: got the attempts %v, want %v", version, attempts, want)
			}
			if n := o.saw().sends; n != want[1] {
				t.Errorf("RabbitMQ %s: %d messages were sent, want %d", version, n, want[1])
			}
			k.stop()
		})
	}
}

// If the broker takes a message back while its retry is being published, that retry is abandoned, and only the
// redelivered message is retried.
func TestRetryEndsWithItsDelivery(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return amqpx.RetryIn(time.Hour, errors.New("no"))
			}
			return nil
		}}
		k := c.consume("q", got.handle)
		undo := m.refuseDelays()
		c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
		after(25 * time.Second)
		m.CutConnections()
		after(5 * time.Second)
		undo()
		after(2 * time.Hour)
		if attempts := got.attempts(); !slices.Equal(attempts, []int{1, 1, 2}) {
			t.Errorf("the message was handled in the attempts %v, want [1 1 2]", attempts)
		}
		k.stop()
	})
}

// A handler sees the same exchange and key on every attempt, and the dead letter contains them.
func TestEveryAttemptHasTheSameKey(t *testing.T) {
	send := func(msg amqpx.Message) func(m *memory, c *client) {
		return func(_ *memory, c *client) { c.mustSend(msg) }
	}
	publish := func(exchange, key string) func(m *memory, c *client) {
		return func(m *memory, _ *client) { m.Publish(exchange, key, amqp.Publishing{}) }
	}
	for name, test := range map[string]struct {
		send          func(m *memory, c *client)
		exchange, key string
		destination   string // the destination header of the dead letter
	}{
		"queue":          {send(amqpx.Message{Queue: "q", Delay: time.Minute}), "", "q", "q"},
		"queue, due now": {send(amqpx.Message{Queue: "q"}), "", "q", "q"},
		"exchange": {
			send(amqpx.Message{Exchange: "events", RoutingKey: "user.created", Delay: time.Minute}), "events",
			"user.created", "events:user.created",
		},
		"exchange with a colon": {
			send(amqpx.Message{Exchange: "urn:events", RoutingKey: "user:created", Delay: time.Minute}), "urn:events",
			"user:created", "urn:events:user:created",
		},
		"foreign":               {publish("events", "user.deleted"), "events", "user.deleted", "events:user.deleted"},
		"foreign without a key": {publish("fan", ""), "fan", "", "fan:"},
		"foreign to the queue":  {publish("", "q"), "", "q", "q"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				got := collector{answer: func(*amqpx.Delivery) error { return errors.New("no") }}
				k := c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 3}))
				err := c.Apply(t.Context(), topology.Topology{
					Exchanges: []topology.Exchange{{Name: "events", Kind: "topic"}, {Name: "urn:events", Kind: "topic"}, {Name: "fan", Kind: "fanout"}},
					Bindings: []topology.Binding{
						{Exchange: "events", Queue: "q", RoutingKey: "#"}, {Exchange: "urn:events", Queue: "q", RoutingKey: "#"}, {Exchange: "fan", Queue: "q"},
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				test.send(m, c)
				after(time.Hour)
				if attempts := got.attempts(); !slices.Equal(attempts, []int{1, 2, 3}) {
					t.Errorf("the message was handled in the attempts %v, want [1 2 3]", attempts)
				}
				dead := m.State("q.dead").Messages
				if len(dead) != 1 || dead[0].Headers[amqpx.HeaderDestination] != test.destination {
					t.Fatalf("queue q.dead: got %v, want one dead letter to %s", dead, test.destination)
				}
				// A dead letter that is published to the queue again arrives with its original exchange and key.
				m.Publish("", "q", dead[0].Publishing)
				after(0)
				if n := len(got.all()); n != 4 {
					t.Errorf("the message was handled %d times, want 4: three attempts, and once after it was published again", n)
				}
				for i, h := range got.all() {
					if h.Exchange != test.exchange || h.RoutingKey != test.key {
						t.Errorf("delivery %d has the exchange %q and the key %q, want %q and %q", i+1, h.Exchange, h.RoutingKey, test.exchange, test.key)
					}
				}
				k.stop()
			})
		})
	}
}

// A retry whose body exceeds the broker's size limit keeps its headers, because removing them would not help.
func TestRetryAboveTheSizeLimitKeepsItsHeaders(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error { return errors.New("again") })
		for _, e := range m.Exchanges() {
			if strings.HasPrefix(e.Name, "delay.bucket") {
				m.Refuse(e.Name, amqp.PreconditionFailed, "message size 5 is larger than configured max size 3")
			}
		}
		m.Publish("", "q", amqp.Publishing{MessageId: "1", Body: []byte("large"), Headers: amqp.Table{"mine": "kept"}})
		after(time.Minute)
		k.stop()
		for _, e := range o.log.All() {
			if strings.Contains(e.Message, "headers") {
				t.Errorf("the log has the line %q with the fields %v, want none about headers", e.Message, e.ContextMap())
			}
		}
		m.Holds("q", 1, 0)
	})
}

// Headers that do not fit into a frame together with those that a retry adds are dropped. Otherwise the broker would
// close the connection at each try.
func TestRetryFitsIntoAFrame(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error {
			return errors.New(strings.Repeat("again", 100))
		}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
		for _, c := range []struct{ cc, header int }{{150, 100_000}, {620, 0}} { // cc is the number of CC keys (205 bytes each), header the size of another header
			keys := slices.Repeat([]any{strings.Repeat("k", 200)}, c.cc)
			m.Publish("", "q", amqp.Publishing{Headers: amqp.Table{"CC": keys, "mine": strings.Repeat("x", c.header)}})
		}
		after(time.Minute)
		k.stop()
		m.Holds("q.dead", 2, 0)
		if states := o.saw().states; slices.Contains(states, "publish disconnected") {
			t.Errorf(`the hook got the connection events %v, want no "publish disconnected"`, states)
		}
	})
}
