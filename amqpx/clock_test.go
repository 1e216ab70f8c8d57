package amqpx_test

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// With a ClockOffset, a message arrives when the clock with this offset shows the DeliverAt time, whether it is sent
// alone or in a batch.
func TestClockOffset(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var got collector
		k := c.consume("q", got.handle)
		defer k.stop()
		began := time.Now()
		msgs := map[string]amqpx.Message{
			"ahead":         {DeliverAt: began.Add(time.Hour + time.Minute), ClockOffset: time.Hour},
			"behind":        {DeliverAt: began.Add(time.Minute - time.Hour), ClockOffset: -time.Hour},
			"past, ahead":   {DeliverAt: began.Add(time.Minute), ClockOffset: time.Hour},
			"a bit behind":  {DeliverAt: began.Add(time.Minute), ClockOffset: -1500 * time.Microsecond},
			"the same, far": {DeliverAt: time.Unix(1<<62, 0), ClockOffset: time.Hour},
		}
		want := map[string]time.Duration{"ahead": time.Minute, "behind": time.Minute, "past, ahead": 0, "a bit behind": time.Minute + 2*time.Millisecond}
		for id, msg := range msgs {
			msg.ID, msg.Queue = id, "q"
			err := c.Send(t.Context(), msg)
			if (err == nil) != (id != "the same, far") {
				t.Errorf("Send of message %s: got %v, want an error: %t", id, err, id == "the same, far")
			}
			if err == nil {
				msg.ID += ", in a batch"
				if err := c.SendBatch(t.Context(), []amqpx.Message{msg}); err != nil {
					t.Errorf("SendBatch of message %s: got %v, want no error", id, err)
				}
			}
		}
		after(3 * time.Hour)
		tries := got.since(began)
		for id, delay := range want {
			for _, id := range []string{id, id + ", in a batch"} {
				if at := tries[id]; len(at) != 1 || at[0] < delay || at[0] > delay+time.Second {
					t.Errorf("message %s arrived after %v, want once, after %v to %v", id, at, delay, delay+time.Second)
				}
			}
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Minute, ClockOffset: time.Hour}); !errors.Is(err, amqpx.ErrMessage) {
			t.Errorf("Send with a Delay and a ClockOffset: got %v, want amqpx.ErrMessage", err)
		}
	})
}

// If a consumer's clock is behind the publisher's, a retry has the usual delay, and is not due before the original
// message.
func TestRetryByAClockThatIsBehind(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		var dues []time.Duration
		got := collector{answer: func(d *amqpx.Delivery) error {
			dues = append(dues, d.DueAt.Sub(due))
			switch d.Attempt {
			case 1:
				return errors.New("not yet")
			case 2:
				if d.Snoozes == 0 {
					return amqpx.Snooze(30 * time.Minute)
				}
				return amqpx.RetryIn(20*time.Minute, errors.New("not yet"))
			}
			return nil
		}}
		k := c.consume("q", got.handle, amqpx.WithRetry(topology.Retry{Backoff: 20 * time.Minute, MaxBackoff: time.Hour, Jitter: topology.NoJitter}))
		defer k.stop()
		after(time.Second)
		began := time.Now()
		m.Publish("", "q", amqp.Publishing{MessageId: "x", Timestamp: began.Add(time.Hour), Headers: amqp.Table{amqpx.HeaderDue: due.UnixMilli()}})
		after(3 * time.Hour)
		want := []time.Duration{0, 20 * time.Minute, 50 * time.Minute, 70 * time.Minute}
		tries := got.since(began)["x"]
		if len(tries) != len(want) {
			t.Fatalf("the attempts were after %v, want %v", tries, want)
		}
		for i := range want {
			if tries[i] < want[i] || tries[i] > want[i]+time.Second {
				t.Errorf("the attempts were after %v, want %v, each up to 1s later", tries, want)
			}
		}
		for i, d := range dues {
			if i < 3 && d != 0 || i == 3 && (d < 10*time.Minute-time.Second || d > 10*time.Minute+2*time.Second) {
				t.Errorf("the retries are due %v after the message, want 0 three times and then 10m", dues)
			}
		}
	})
}
