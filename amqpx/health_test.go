package amqpx_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// ill fails the test unless Health reports exactly the wanted problems, each given as a part and its state, since the
// given time.
func (c *client) ill(since time.Time, want ...string) *amqpx.HealthError {
	c.m.Helper()
	sick := c.unwell(want...)
	for _, p := range sick.Problems {
		if !p.Since.Equal(since) {
			c.m.Errorf("Health: got a problem of %s since %v, want since %v", p.Part, p.Since, since)
		}
	}
	return sick
}

// unwell is like ill, but does not check the time.
func (c *client) unwell(want ...string) *amqpx.HealthError {
	c.m.Helper()
	var got []string
	sick, ok := errors.AsType[*amqpx.HealthError](c.Health())
	if !ok {
		c.m.Fatalf("Health: got no *HealthError, want %q", want)
	}
	for _, p := range sick.Problems {
		got = append(got, p.Part+" "+p.State)
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		c.m.Errorf("Health: got the problems %q, want %q", got, want)
	}
	return sick
}

func (c *client) healthy() {
	c.m.Helper()
	if err := c.Health(); err != nil {
		c.m.Errorf("Health: got %v, want no error", err)
	}
}

func TestHealthOfABlockedConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", nothing)
		c.mustSend(amqpx.Message{Queue: "q"})
		c.healthy()
		after(time.Minute)
		m.Block("low on memory")
		waiting := c.sending(amqpx.Message{Queue: "q"}) // the broker blocks connections that publish
		since := time.Now()
		after(10 * time.Second)
		sick := c.ill(since, "publish blocked")
		if p := sick.Problems[0]; p.Reason != "low on memory" || p.Final || !errors.Is(sick, amqpx.ErrBlocked) {
			t.Errorf(`the first problem of a blocked client: got %+v, want amqpx.ErrBlocked, Reason = "low on memory" and Final = false`, p)
		}
		m.Unblock()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		c.healthy()
		k.stop()
	})
}

// While the client reconnects, Health keeps reporting the time at which the connection was lost.
func TestHealthWithoutABroker(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", nothing)
		c.healthy()
		since := time.Now()
		undo := m.RefuseConnections()
		m.CutConnections()
		for range 3 {
			after(time.Minute)
			sick := c.ill(since, "publish disconnected", "consume disconnected", "consumer q down")
			if p := sick.Problems[0]; p.Final || !strings.Contains(p.Reason, "connection refused") {
				t.Errorf(`the first problem without a broker: got %+v, want Final = false and Reason with "connection refused"`, p)
			}
			if _, ok := errors.AsType[*amqpx.DialError](sick); !ok {
				t.Errorf("Health without a broker: got %v, want an error that wraps a *DialError", sick)
			}
		}
		undo()
		after(time.Minute)
		c.healthy()
		if s := c.Stats(); s.Publish.Sessions != 2 || s.Consume.Sessions != 2 || s.Publish.Reason != "" {
			t.Errorf(`Stats after the broker's return: got %+v, want Publish.Sessions = 2, Consume.Sessions = 2 and Publish.Reason = ""`, s)
		}
		k.stop()
	})
}

// A refused login is a final problem only if it lasts, because a starting broker refuses all users.
func TestHealthOfARefusedUser(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		since := time.Now()
		undo := m.RefuseLogins()
		m.CutConnections()
		after(time.Second)
		if sick := c.ill(since, "publish disconnected"); sick.Problems[0].Final {
			t.Errorf("after 1s: got the problem %+v, want Final = false", sick.Problems[0])
		}
		after(time.Minute)
		sick := c.ill(since, "publish disconnected")
		if ae, ok := errors.AsType[*amqp.Error](sick); !sick.Problems[0].Final || !ok || ae.Code != amqp.AccessRefused {
			t.Errorf("Health after the user was refused: got %+v, want a final problem with reply code 403", sick)
		}
		if strings.Contains(sick.Error(), "guest:guest") {
			t.Errorf("Health after the user was refused: got %v, want no password in the error", sick)
		}
		undo()
		after(time.Minute)
		c.healthy()
	})
}

func TestHealthOfAConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		since := time.Now()
		undo := m.Delay("basic.consume", "q", time.Hour)
		k := c.consume("q", nothing)
		c.ill(since, "consumer q starting")
		undo()
		after(2 * time.Hour)
		c.healthy()
		k.stop()
		if got := c.Stats().Consumers; len(got) != 0 {
			t.Errorf("Stats after the consumer stopped: got the consumers %+v, want none", got)
		}
	})
}

func TestHealthOfAStuckQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{Queue: "other"})
		undo := m.Silence("q")
		since := time.Now()
		c.sending(amqpx.Message{Queue: "q"})
		after(3 * time.Second)
		c.mustSend(amqpx.Message{Queue: "other"})
		sick := c.ill(since, "queue q stuck")
		if s := c.Stats(); s.InFlight != 1 || s.Sending != 1 || len(s.Stuck) != 1 {
			t.Errorf("while Health reports %v: got Stats %+v, want InFlight = 1, Sending = 1 and one stuck queue", sick, s)
		}
		undo()
		synctest.Wait()
		c.healthy()
		if s := c.Stats(); s.InFlight != 0 || s.Sending != 0 {
			t.Errorf("Stats after the stuck queue recovered: got %+v, want InFlight = 0 and Sending = 0", s)
		}
	})
}

func TestHealthWhileClosing(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		release := make(chan struct{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error { <-release; return nil })
		c.mustSend(amqpx.Message{Queue: "q"})
		synctest.Wait()
		since := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		after(time.Second)
		if sick := c.ill(since, "client closing", "consumer q ending"); !errors.Is(sick, amqpx.ErrClosed) {
			t.Errorf("Health while Close waits for a handler: got %v, want an error that wraps ErrClosed", sick)
		}
		close(release)
		if err := errors.Join(<-closed, <-k.result); err != nil {
			t.Error(err)
		}
		c.ill(since, "client closing")
		if s := c.Stats(); s.Publish.State != amqpx.StateClosed || s.Consume.State != amqpx.StateClosed || s.Declare.State != amqpx.StateClosed {
			t.Errorf("Stats after Close: got %+v, want the publish, consume and declare connections closed", s)
		}
	})
}

// Stats counts the running handlers and the messages that wait for a handler or are being settled, and contains the
// lateness of the last message.
func TestStatsOfAConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		began := time.Now()
		for range 6 {
			c.mustSend(amqpx.Message{Queue: "q", Delay: time.Second})
		}
		after(11 * time.Second)
		begun := time.Now()
		release := make(chan error)
		c.consume("q", func(context.Context, *amqpx.Delivery) error { return <-release },
			amqpx.WithConcurrency(2), amqpx.WithPrefetch(5))
		after(time.Minute)
		got := c.Stats().Consumers[0]
		want := amqpx.ConsumerStats{
			Queue: "q", State: amqpx.ConsumerConsuming, Since: begun, Running: 2, Concurrency: 2, Waiting: 3, Prefetch: 5,
			Oldest: begun, Begun: begun, Lateness: begun.Sub(began) - time.Second,
		}
		if !got.Since.Equal(want.Since) || !got.Oldest.Equal(want.Oldest) || !got.Begun.Equal(want.Begun) {
			t.Errorf("Stats of the consumer (times): got %+v, want %+v", got, want)
		}
		got.Since, got.Oldest, got.Begun = want.Since, want.Oldest, want.Begun
		if got != want {
			t.Errorf("Stats of the consumer: got %+v, want %+v", got, want)
		}
		undo := m.refuseDelays()
		release <- errors.New("no")
		synctest.Wait()
		if got := c.Stats().Consumers[0]; got.Settling != 1 || got.Running != 2 || got.Handled != 1 || got.Failed != 1 || got.Waiting != 2 {
			t.Errorf("while a retry cannot be sent: got %+v, want 1 settling, 2 running, 1 handled, 1 failed and 2 waiting", got)
		}
		undo()
		close(release)
		after(time.Minute)
		if got := c.Stats().Consumers[0]; got.Settling+got.Running+got.Waiting != 0 || got.Handled != 7 || got.Failed != 1 || !got.Oldest.IsZero() {
			t.Errorf("idle consumer: got %+v, want 7 handled, 1 failed and nothing in progress", got)
		}
	})
}

// A client opens its connection for consuming only when it is needed, and the one for declarations only while it is in
// use.
func TestStatsAtRest(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		s := c.Stats()
		if s.Publish.State != amqpx.StateConnected {
			t.Errorf("the publish connection is %q, want %q", s.Publish.State, amqpx.StateConnected)
		}
		if s.Publish.Broker == "" {
			t.Error("the publish connection has an empty broker name, want the broker's address or name")
		}
		if s.Publish.Address != "amqptest:5672" {
			t.Errorf("the publish connection has the address %q, want amqptest:5672", s.Publish.Address)
		}
		if s.Consume.State != "" {
			t.Errorf("the consume connection is %q, want none", s.Consume.State)
		}
		if s.Declare.State != "" {
			t.Errorf("the declare connection is %q, want none", s.Declare.State)
		}
		c.mustSend(amqpx.Message{Queue: "q"})
		if s := c.Stats(); s.Declare.State != amqpx.StateConnected || s.Declare.Sessions != 1 {
			t.Errorf("after a declaration: got %+v, want Declare.State = amqpx.StateConnected and Declare.Sessions = 1", s.Declare)
		}
		text, err := json.Marshal(c.Stats())
		if err != nil || strings.Contains(string(text), "guest") || c.Stats().Declare.Address != "amqptest:5672" {
			t.Errorf(`the stats as JSON: got %s, error %v, want no "guest", the declare connection's address amqptest:5672 and no error`, text, err)
		}
		after(2 * time.Minute)
		if s := c.Stats(); s.Declare.State != "" {
			t.Errorf(`two minutes after the declaration: got %+v, want Declare.State = ""`, s.Declare)
		}
	})
}
