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

// overruns is a broker that takes messages away from consumers without counting it.
var overruns = amqptest.Options{Version: "4.3.0", ConsumerTimeout: time.Minute}

// A handler that always takes longer than the broker's consumer timeout uses up its attempts as one that fails.
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
					// A message without an id may run again while it still runs.
					if attempts := slices.Compact(got.attempts()); !slices.Equal(attempts, []int{1, 2, 3}) {
						t.Errorf("attempts %v, want 1 to 3", attempts)
					}
					dead := m.State("q.dead").Messages
					if len(dead) != 1 || dead[0].Headers[amqpx.HeaderReason] != "attempts" {
						t.Fatalf("dead letters %+v", dead)
					}
					text := fmt.Sprint(dead[0].Headers[amqpx.HeaderError])
					for _, part := range []string{"consumer timeout", "its result was " + result} {
						if !strings.Contains(text, part) {
							t.Errorf("the error does not say %q: %s", part, text)
						}
					}
					m.Holds("q", 0, 0)
					k.stop()
				})
			})
		}
	}
}

// Two processes between which such a message goes to and fro end it too.
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
			t.Errorf("%d runs, want 3 attempts by at most two processes", n)
		}
	})
}

// What the broker takes away from a consumer that only held it is no attempt, and neither is a connection that was lost.
func TestHoldsAreNoAttempts(t *testing.T) {
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
						t.Errorf("it came as attempt %d", d.Attempt)
					}
				}
				m.Holds("q", 0, 0)
				m.Holds("q.dead", 0, 0)
			})
		})
	}
}

// A consumer that was added for held messages and is ended by the broker is noticed: no retry is sent for what
// the broker has taken away from it.
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
			t.Errorf("of %d messages the slow one had attempts %v, want 1 and 2", len(runs), runs["39"])
		}
	})
}
