package amqpx_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// late is how long a binding takes in a broker with late bindings.
const late = 20 * time.Millisecond

// The broker tells the second binder of a destination that it is bound while it
// does not route by the binding yet.
func TestFirstUseWhileAnotherClientBinds(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, m *memory) {
		m.declareQueue("q.dead", nil)
		m.declareQueue("q", nil)
		var clients []*client
		for range 3 {
			clients = append(clients, m.open(amqpx.Config{RecheckInterval: time.Second}))
		}
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				<-time.After(time.Duration(i) * late / 4)
				for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
					if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: delay}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		after(time.Minute)
		m.holds("q", 6, 0)
		if left := ownBindings(m); len(left) > 0 {
			t.Errorf("after a minute there are still %+v", left)
		}
	})
}

// ownBindings are those that a client has made for itself alone.
func ownBindings(m *memory) []amqptest.Binding {
	return slices.DeleteFunc(m.Bindings("delay.deliver"), func(b amqptest.Binding) bool { return len(b.Arguments) == 0 })
}

// A binding that could not be taken away is so later.
func TestOwnBindingsGoInTheEnd(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.open(amqpx.Config{}).mustSend(amqpx.Message{Queue: "q"})
		m.CutAt("queue.unbind", 1)
		after(40 * time.Second)
		if left := ownBindings(m); len(left) != 1 {
			t.Errorf("the connection was lost over the first try, and there are %+v", left)
		}
		after(20 * time.Second)
		if left := ownBindings(m); len(left) > 0 {
			t.Errorf("after a minute there are still %+v", left)
		}
	})
}

// Whoever gives up waiting for a first use does not let the next one overtake it.
func TestFirstUseAfterOneThatWasGivenUp(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		if err := c.Send(m.within(late/2), amqpx.Message{Queue: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first: %v", err)
		}
		c.mustSend(amqpx.Message{Queue: "q"})
		m.holds("q", 1, 0)
	})
}

// Clients that start at one instant on an empty broker do not lose messages on
// their way between the delay queues.
func TestStartWhileAnotherClientDeclares(t *testing.T) {
	two, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, Resolution: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: 3 * time.Second}, func(t *testing.T, m *memory) {
		m.declareQueue("q", nil)
		var wg sync.WaitGroup
		for _, start := range []time.Duration{0, time.Second, 3500 * time.Millisecond} {
			wg.Go(func() {
				<-time.After(start)
				c, err := m.tryOpen(t.Context(), amqpx.Config{Strategy: two})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close(t.Context())
				if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: 200 * time.Millisecond}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		after(time.Minute)
		m.holds("q", 3, 0)
		if _, ok := m.Queue(topology.LockQueue("delay")); ok {
			t.Error("the lock is still there")
		}
	})
}
