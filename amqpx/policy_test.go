package amqpx_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// deadLetterOf returns the only message in a queue's dead-letter queue.
func (m *memory) deadLetterOf(queue string) inspect.DeadLetter {
	m.Helper()
	q := m.State(queue + ".dead")
	if len(q.Messages) != 1 {
		m.Fatalf("%s.dead has %d messages, want 1", queue, len(q.Messages))
	}
	p := q.Messages[0]
	return inspect.ReadDeadLetter(amqp.Delivery{MessageId: p.MessageId, Headers: p.Headers, Body: p.Body}, queue+".dead", "delay")
}

// A failed handler first runs again immediately, and then after a delay. All runs up to the delay are one attempt.
func TestImmediateRetries(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var runs []time.Duration
		var asked []bool
		start := time.Now()
		c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			runs = append(runs, time.Since(start).Truncate(time.Second))
			delay, again := d.RetryDelay(errors.New("x"))
			asked = append(asked, again && delay == 0)
			if len(runs) == 4 {
				panic("a panic is a failure like an error")
			}
			return errors.New("no")
		}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, ImmediateRetries: 2, Backoff: time.Minute, Jitter: topology.NoJitter}))
		c.mustSend(amqpx.Message{ID: "a", Queue: "q"})
		after(5 * time.Minute)
		if want := []time.Duration{0, 0, 0, time.Minute, time.Minute, time.Minute}; !slices.Equal(runs, want) {
			t.Errorf("the handler ran after %v, want %v", runs, want)
		}
		if want := []bool{true, true, false, true, true, false}; !slices.Equal(asked, want) {
			t.Errorf("RetryDelay announced an immediate retry: got %v, want %v", asked, want)
		}
		if dl := m.deadLetterOf("q"); len(dl.Attempts) != 2 || dl.Reason != "attempts" {
			t.Errorf(`the dead letter has the reason %q and the attempts %q, want "attempts" and two attempts`, dl.Reason, dl.Attempts)
		}
	})
}

// Immediate retries end with the first success. There are none if the error is a Reject, Snooze, RetryIn or Requeue.
func TestImmediateRetriesEnd(t *testing.T) {
	for name, answers := range map[string][]error{
		"success": {errors.New("no"), nil}, "reject": {amqpx.Reject(nil)}, "snooze": {amqpx.Snooze(time.Minute), nil},
		"retry in": {amqpx.RetryIn(time.Minute, nil), nil}, "requeue": {amqpx.Requeue(nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				var early, runs int
				start := time.Now()
				c.consume("q", func(context.Context, *amqpx.Delivery) error {
					runs++
					if time.Since(start) < 500*time.Millisecond {
						early++
					}
					return answers[min(runs, len(answers))-1]
				}, amqpx.WithRetry(topology.Retry{ImmediateRetries: 5}))
				c.mustSend(amqpx.Message{Queue: "q"})
				after(time.Hour)
				want := 1
				if name == "success" {
					want = 2
				}
				if early != want || runs != len(answers) {
					t.Errorf("the handler ran %d times, %d of them immediately, want %d and %d", runs, early, len(answers), want)
				}
			})
		})
	}
}

var (
	errGone = errors.New("no such order")
	errBusy = errors.New("busy")
	errDown = errors.New("provider is down")
)

// An error policy decides what happens to a message, depending on the error of its handler.
func TestErrorPolicy(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		calls := 0
		policy := func(d *amqpx.Delivery, err error) error {
			calls++
			switch {
			case errors.Is(err, errGone):
				return amqpx.Reject(err)
			case errors.Is(err, errBusy):
				return amqpx.RetryIn(5*time.Minute, err)
			case errors.Is(err, errDown):
				return amqpx.Snooze(time.Hour)
			case d.ID == "panic":
				panic("in the policy")
			}
			return nil
		}
		began := map[string][]time.Duration{}
		attempts := map[string][]int{}
		start := time.Now()
		c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			began[d.ID] = append(began[d.ID], time.Since(start).Round(time.Second))
			attempts[d.ID] = append(attempts[d.ID], d.Attempt)
			if len(began[d.ID]) > 1 {
				return nil
			}
			return d.ApplyPolicy(d.ApplyPolicy(map[string]error{"gone": errGone, "busy": errBusy, "down": errDown}[d.ID])) // applying the policy again changes nothing
		}, amqpx.WithErrorPolicy(policy), amqpx.WithConcurrency(1))
		for _, id := range []string{"gone", "busy", "down"} {
			c.mustSend(amqpx.Message{ID: id, Queue: "q"})
		}
		after(2 * time.Hour)
		if got, want := began["busy"], []time.Duration{0, 5 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("the handler of busy ran after %v, want %v", got, want)
		}
		if got := attempts["down"]; !slices.Equal(began["down"], []time.Duration{0, time.Hour}) || !slices.Equal(got, []int{1, 1}) {
			t.Errorf("the handler of down ran after %v with the attempts %v, want [0 1h] and [1 1]", began["down"], got)
		}
		if dl := m.deadLetterOf("q"); len(began["gone"]) != 1 || dl.Reason != inspect.ReasonRejected || dl.Error != errGone.Error() {
			t.Errorf("message gone: got %d runs and a dead letter with reason %q and error %q, want 1 run, %q and %q", len(began["gone"]), dl.Reason, dl.Error, inspect.ReasonRejected, errGone)
		}
		if calls != 3 {
			t.Errorf("the policy was called %d times, want 3, once for each failure", calls)
		}
	})
}

// If the policy does not decide, or panics, the retry policy applies to the error.
func TestErrorPolicyLeavesAlone(t *testing.T) {
	for name, policy := range map[string]func(*amqpx.Delivery, error) error{
		"nil": func(*amqpx.Delivery, error) error { return nil }, "same": func(_ *amqpx.Delivery, err error) error { return err },
		"panic": func(*amqpx.Delivery, error) error { panic("in the policy") },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				runs := 0
				c.consume("q", func(context.Context, *amqpx.Delivery) error { runs++; return errBusy }, amqpx.WithErrorPolicy(policy))
				c.mustSend(amqpx.Message{Queue: "q"})
				after(time.Hour)
				if dl := m.deadLetterOf("q"); runs != 5 || dl.Reason != "attempts" || dl.Error != "busy" {
					t.Errorf(`after an hour: got %d runs and a dead letter with the reason %q and the error %q, want 5, "attempts" and "busy"`, runs, dl.Reason, dl.Error)
				}
			})
		})
	}
}

type order struct {
	Order int `json:"order"`
}

// A body that does not decode into the type is dead-lettered immediately, with the reason.
func TestJSON(t *testing.T) {
	for body, want := range map[string]string{
		`{"order":42,"new":1}`: "", `{"order":"42"}`: "cannot unmarshal string into Go struct field order.order of type int",
		``: "the body is empty; expected JSON", `{"order":42} x`: "after top-level value", "\xff\x00": "invalid character",
	} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{})
			var got []int
			runs := 0
			c.consume("q", amqpx.JSON(func(_ context.Context, o order, d *amqpx.Delivery) error {
				got = append(got, o.Order)
				return nil
			}), amqpx.WithMiddleware(func(next amqpx.Handler) amqpx.Handler {
				return func(ctx context.Context, d *amqpx.Delivery) error {
					runs++
					err := next(ctx, d)
					if (err != nil) != errors.Is(err, amqpx.ErrUnreadableBody) {
						t.Errorf("body %q: got %v, want ErrUnreadableBody or no error", body, err)
					}
					return err
				}
			}))
			c.mustSend(amqpx.Message{Queue: "q", Body: []byte(body), ContentType: "text/x"})
			after(time.Minute)
			if want == "" {
				if !slices.Equal(got, []int{42}) {
					t.Errorf("body %q: the orders %v were handled, want [42]", body, got)
				}
				return
			}
			dl := m.deadLetterOf("q")
			if len(got) != 0 || runs != 1 || dl.Reason != inspect.ReasonRejected || !strings.Contains(dl.Error, want) ||
				!strings.Contains(dl.Error, "*amqpx_test.order") || !strings.Contains(dl.Error, "text/x") {
				t.Errorf("body %q: got %d runs, %v handled, and a dead letter with the reason %q and the error %q, want 1 run, none handled, and %q with %q",
					body, runs, got, dl.Reason, dl.Error, inspect.ReasonRejected, want)
			}
		})
	}
}

// The type of a message selects its handler, for retries as well. A message of any other type is rejected, or passed to
// the handler for other types.
func TestByType(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var got []string
		note := func(name string) amqpx.Handler {
			return func(_ context.Context, d *amqpx.Delivery) error {
				got = append(got, name+":"+d.ID)
				if d.Attempt == 1 {
					return errBusy
				}
				return nil
			}
		}
		handlers := map[string]amqpx.Handler{"paid": note("paid"), "": note("none")}
		c.consume("q", amqpx.ByType(handlers, nil), amqpx.WithConcurrency(1))
		c.consume("any", amqpx.ByType(handlers, note("other")), amqpx.WithConcurrency(1))
		handlers["late"] = note("late") // has no effect, because ByType copies the map
		c.mustSend(amqpx.Message{ID: "1", Queue: "q", Type: "paid"})
		c.mustSend(amqpx.Message{ID: "2", Queue: "q"})
		after(time.Second / 2)
		c.mustSend(amqpx.Message{ID: "3", Queue: "q", Type: "late"})
		c.mustSend(amqpx.Message{ID: "4", Queue: "any", Type: "late"})
		after(time.Minute)
		slices.Sort(got)
		if want := []string{"none:2", "none:2", "other:4", "other:4", "paid:1", "paid:1"}; !slices.Equal(got, want) {
			t.Errorf("the handlers got %v, want %v", got, want)
		}
		dl := m.deadLetterOf("q")
		if dl.ID != "3" {
			t.Errorf("the dead letter is %s, want 3", dl.ID)
		}
		if dl.Reason != inspect.ReasonRejected {
			t.Errorf("the dead letter's reason is %s, want %s", dl.Reason, inspect.ReasonRejected)
		}
		if want := `no handler for messages of type "late"; there are handlers for "", "paid"`; dl.Error != want {
			t.Errorf("the dead letter's error is %s, want %s", dl.Error, want)
		}
	})
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, `type "paid" is nil`) {
			t.Errorf("ByType with a nil handler: got the panic %q, want one with %q", r, `type "paid" is nil`)
		}
	}()
	amqpx.ByType(map[string]amqpx.Handler{"paid": nil}, nil)
}
