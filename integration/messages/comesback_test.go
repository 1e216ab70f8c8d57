package messages_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/proxy"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// RabbitMQ 4 limits how many times a message may be returned to a quorum queue. A message that a consumer only holds
// until its due time survives more pauses, lost connections and consumer restarts than that limit. It is handled once
// when it is due, and not a whole lead later.
func TestHeldMessagesComeBack(t *testing.T) {
	const rounds, lead = 25, 40 * time.Second
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		p, url, err := proxy.ForURL(v.URL)
		suite.MustSucceed(t, err)
		defer p.Close()
		if _, err := v.Channel(t).QueueDeclare("own", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: url, Lead: lead})
		var got runs
		stop := suite.Consume(t, c, "own", got.handle)
		held := func(n int) func() bool { return func() bool { return c.Stats().Consumers[0].Held == n } }
		for _, way := range []struct {
			name string
			back func()
		}{
			{"pauses", func() {
				suite.MustSucceed(t, c.PauseConsuming("own", amqpx.PauseHandBack))
				suite.Eventually(t, "the consumer has returned the held messages", held(0))
				c.ResumeConsuming("own")
			}},
			{"cuts", func() {
				before := c.Stats().Consume.Sessions
				p.Cut()
				suite.Eventually(t, "the consumer is connected again", func() bool { return c.Stats().Consume.Sessions > before })
			}},
		} {
			already := got.count()
			suite.Send(t, c, amqpx.Message{ID: "straight, " + way.name, Queue: "own", Delay: lead - time.Second},
				amqpx.Message{ID: "delayed, " + way.name, Queue: "own", Delay: lead + 5*time.Second})
			suite.Eventually(t, "both messages are held", held(2))
			for range rounds {
				way.back()
				suite.Eventually(t, "both messages are held again, or handled", func() bool { return got.count() > already || held(2)() })
			}
			suite.Within(t, 4*lead, "both messages are handled", func() bool { return got.count() >= already+2 })
		}
		suite.Send(t, c, amqpx.Message{ID: "by another process", Queue: "own", Delay: lead})
		suite.Eventually(t, "the message is held", held(1))
		suite.MustSucceed(t, stop())
		other := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: lead})
		suite.Consume(t, other, "own", got.handle)
		suite.Within(t, 4*lead, "the message is handled", func() bool { return got.count() >= 5 })
		for id, late := range got.lateness() {
			if late < 0 || late > lead/2 {
				t.Errorf("message %s was handled %v after its due time, want 0 to %v", id, late, lead/2)
			}
		}
	})
}

// Overdue messages are not held, even if a single active consumer receives only its prefetch at a time. Holding each
// prefetch for the whole lead would take twenty minutes.
func TestOverdueIsNotHeld(t *testing.T) {
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		args := amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
		if _, err := v.Channel(t).QueueDeclare("own", true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		const n, lead = 500, 20 * time.Second
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: lead})
		messages := make([]amqpx.Message, n)
		for i := range messages {
			delay := lead + time.Second
			if i%2 == 0 { // shorter than the lead
				delay = lead - time.Second
			}
			messages[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: "own", Delay: delay}
		}
		suite.Send(t, c, messages...)
		suite.Eventually(t, "all messages have arrived", func() bool {
			q, err := v.Channel(t).QueueDeclarePassive("own", true, false, false, false, nil)
			return err == nil && q.Messages == n
		})
		overdue := make(chan struct{})
		time.AfterFunc(lead+3*time.Second, func() { close(overdue) }) // there is no event to wait for
		<-overdue
		other := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: lead})
		var got runs
		suite.Consume(t, other, "own", got.handle, amqpx.WithPrefetch(8))
		suite.Within(t, 5*time.Minute, "all messages are handled", func() bool { return got.count() == n })
	})
}

// The broker's time can be read with a precision of one second.
func TestTimeOfTheBroker(t *testing.T) {
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		before := time.Now()
		at, err := v.Unmanaged().Time(t.Context(), "delay")
		suite.MustSucceed(t, err)
		if at.Before(before.Add(-1100*time.Millisecond)) || at.After(time.Now().Add(100*time.Millisecond)) {
			t.Errorf("asked between %v and %v, the broker returned the time %v, want a time in between, rounded down to seconds", before, time.Now(), at)
		}
	})
}

// runs records how long after its due time each message was handled.
type runs struct {
	mu   sync.Mutex
	late map[string]time.Duration
	all  int
}

func (r *runs) handle(_ context.Context, d *amqpx.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.late == nil {
		r.late = map[string]time.Duration{}
	}
	r.late[d.ID] = time.Since(d.DueAt)
	r.all++
	return nil
}

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func (r *runs) lateness() map[string]time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.late
}
