package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// overruns configures a broker that takes messages back from consumers after the timeout without counting that as a
// delivery failure.
var overruns = amqptest.Options{Version: "4.3.0", ConsumerTimeout: time.Minute}

// A handler that always runs past the broker's consumer timeout uses up its attempts like one that fails.
func TestOverrunsAreAttempts(t *testing.T) {
	for result, err := range map[string]error{"success": nil, "no": errors.New("no")} {
		for _, id := range []string{"x", ""} {
			t.Run(fmt.Sprintf("%s %q", result, id), func(t *testing.T) {
				inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
					c := m.open(amqpx.Config{})
					got := collector{answer: func(*amqpx.Delivery) error { <-time.After(5 * time.Minute); return err }}
					k := c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 3}))
					m.Publish("", "q", amqp.Publishing{MessageId: id, Body: []byte("body")})
					after(24 * time.Hour)
					// A message without an id may run again while an earlier run continues.
					if attempts := slices.Compact(got.attempts()); !slices.Equal(attempts, []int{1, 2, 3}) {
						t.Errorf("the message was handled in the attempts %v, want 1 to 3", attempts)
					}
					dead := m.State("q.dead").Messages
					if len(dead) != 1 || dead[0].Headers[amqpx.HeaderReason] != "attempts" {
						t.Fatalf(`queue q.dead: got %+v, want one dead letter with the reason "attempts"`, dead)
					}
					text := fmt.Sprint(dead[0].Headers[amqpx.HeaderError])
					for _, part := range []string{"consumer timeout", "its result was " + result} {
						if !strings.Contains(text, part) {
							t.Errorf("the dead letter: got the error %q, want it to contain %q", text, part)
						}
					}
					m.Holds("q", 0, 0)
					k.stop()
				})
			})
		}
	}
}

// The attempts are also used up if the message alternates between two processes.
func TestOverrunsOfSeveralProcesses(t *testing.T) {
	inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
		var runs atomic.Int64
		for range 2 {
			m.open(amqpx.Config{}).consume("q", func(context.Context, *amqpx.Delivery) error {
				runs.Add(1)
				<-time.After(90 * time.Second)
				return nil
			}, amqpx.WithRetry(topology.Retry{MaxAttempts: 3}))
		}
		m.Publish("", "q", amqp.Publishing{MessageId: "x"})
		after(24 * time.Hour)
		m.Holds("q.dead", 1, 0)
		if n := runs.Load(); n < 3 || n > 6 {
			t.Errorf("the handlers ran %d times, want 3 to 6 times (3 attempts, each in at most two processes)", n)
		}
	})
}

// If several handlers exceed the timeout at the same time, each of their messages uses exactly its three attempts.
func TestOverrunsTogether(t *testing.T) {
	for _, c := range []struct{ apart, takes time.Duration }{
		{0, 90 * time.Second}, {10 * time.Millisecond, 70 * time.Second}, {3 * time.Second, 90 * time.Second},
		{3 * time.Second, 5 * time.Minute}, {20 * time.Second, 90 * time.Second},
	} {
		t.Run(fmt.Sprint(c.apart, " ", c.takes), func(t *testing.T) {
			apart, takes := c.apart, c.takes
			inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				got := collector{answer: func(*amqpx.Delivery) error { <-time.After(takes); return nil }}
				c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{MaxAttempts: 3}))
				const n = 10
				for i := range n {
					m.Publish("", "q", amqp.Publishing{MessageId: fmt.Sprint(i)})
					after(apart)
				}
				after(24 * time.Hour)
				runs := map[string][]int{}
				for _, d := range got.all() {
					runs[d.ID] = append(runs[d.ID], d.Attempt)
				}
				for id, attempts := range runs {
					if !slices.Equal(attempts, []int{1, 2, 3}) {
						t.Errorf("attempts of %s: got %v, want 1 to 3", id, attempts)
					}
				}
				m.Holds("q.dead", n, 0)
				m.Holds("q", 0, 0)
			})
		})
	}
}

// A handler that exceeds the timeout does not affect messages that are handled, held until they are due or waiting for
// a free handler: no attempt is repeated, and their returns do not count towards the delivery limit.
func TestOverrunAffectsNoOthers(t *testing.T) {
	inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
		m.declareOwn("q", amqp.Table{"x-delivery-limit": 1})
		c := m.open(amqpx.Config{Lead: 30 * time.Second})
		got := collector{answer: func(d *amqpx.Delivery) error {
			switch {
			case d.ID == "slow":
				<-time.After(5 * time.Minute)
			case d.ID == "fails" && d.Attempt == 1:
				<-time.After(20 * time.Second)
				return errors.New("no")
			case d.ID != "waits":
				<-time.After(20 * time.Second)
			}
			return nil
		}}
		c.consume("q", got.handle, amqpx.WithConcurrency(4), amqpx.WithRetry(topology.Retry{MaxAttempts: 4}))
		c.mustSend(amqpx.Message{ID: "slow", Queue: "q"})
		after(time.Second)
		c.mustSend(amqpx.Message{ID: "held", Queue: "q", Delay: 80 * time.Second},
			amqpx.Message{ID: "works", Queue: "q", Delay: 45 * time.Second}, amqpx.Message{ID: "fails", Queue: "q", Delay: 45 * time.Second})
		after(46 * time.Second)
		c.mustSend(amqpx.Message{ID: "waits", Queue: "q"})
		after(24 * time.Hour)
		runs := map[string][]int{}
		for _, d := range got.all() {
			if d.ID != "slow" {
				runs[d.ID] = append(runs[d.ID], d.Attempt)
			}
		}
		if want := "map[fails:[1 2] held:[1] waits:[1] works:[1]]"; fmt.Sprint(runs) != want {
			t.Errorf("the messages were handled in the attempts %v, want %s", runs, want)
		}
		m.Holds("q.dead", 1, 0)
		m.Holds("q", 0, 0)
	})
}

// No attempt is counted if the broker takes back a message that a consumer only held, or if a connection is lost.
func TestHoldingIsNotAnAttempt(t *testing.T) {
	long, cut := "runs long", "is cut"
	for name, wait := range map[string]func(m *memory, c *client){
		"kept in a pause": func(_ *memory, c *client) {
			c.pause(amqpx.PauseKeepPlace)
			after(20 * time.Minute)
			c.ResumeConsuming("q")
		},
		"waits for a slot": func(*memory, *client) { after(20 * time.Minute) },
		cut: func(m *memory, _ *client) {
			for range 8 {
				after(10 * time.Second)
				m.CutConnections()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				first := true
				got := collector{answer: func(d *amqpx.Delivery) error {
					if d.ID == long && first && name == "waits for a slot" {
						first = false
						<-time.After(15 * time.Minute)
					}
					if d.ID == cut && name == cut {
						<-time.After(20 * time.Second)
					}
					return nil
				}}
				c.consume("q", got.handle, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{MaxAttempts: 3}))
				if name == "kept in a pause" {
					c.pause(amqpx.PauseKeepPlace)
				}
				c.mustSend(amqpx.Message{ID: long, Queue: "q"}, amqpx.Message{ID: cut, Queue: "q"})
				wait(m, c)
				after(time.Hour)
				for _, d := range got.all() {
					if d.ID == cut && d.Attempt != 1 {
						t.Errorf("a message whose connection was cut was delivered as attempt %d, want 1", d.Attempt)
					}
				}
				m.Holds("q", 0, 0)
				m.Holds("q.dead", 0, 0)
			})
		})
	}
}

// The client notices if the broker cancels a consumer that was added for held messages, and sends no retry for messages
// that the broker has taken back.
func TestOverrunAmongHeldMessages(t *testing.T) {
	inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: 30 * time.Second})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.ID == "39" && d.Attempt == 1 {
				<-time.After(5 * time.Minute)
				return errors.New("no")
			}
			return nil
		}}
		c.consume("q", got.handle, amqpx.WithConcurrency(4))
		for i := range 40 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 20*time.Second + time.Duration(i)*time.Millisecond})
		}
		after(time.Hour)
		runs := map[string][]int{}
		for _, d := range got.all() {
			runs[d.ID] = append(runs[d.ID], d.Attempt)
		}
		if !slices.Equal(runs["39"], []int{1, 2}) || len(runs) != 40 {
			t.Errorf("%d messages were handled, message 39 in the attempts %v, want 40 messages and [1 2]", len(runs), runs["39"])
		}
	})
}

// The in-memory broker closes the channel of a consumer that it can no longer notify of a timeout, as RabbitMQ 4.3
// does.
func TestTimeoutAfterCancel(t *testing.T) {
	inMemoryOf(t, overruns, func(t *testing.T, m *memory) {
		m.declareOwn("q", nil)
		m.Publish("", "q", amqp.Publishing{MessageId: "x"})
		conn, err := m.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		deliveries, err := ch.Consume("q", "tag", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-deliveries
		if err := ch.Cancel("tag", false); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		select {
		case e := <-closed:
			if e.Code != amqp.PreconditionFailed || !strings.Contains(e.Reason, "timed out") {
				t.Errorf(`the channel was closed with %v, want PRECONDITION_FAILED and a reason with "timed out"`, e)
			}
		default:
			t.Error("the channel is open after the timeout, want it closed")
		}
		m.Holds("q", 1, 0)
	})
}
