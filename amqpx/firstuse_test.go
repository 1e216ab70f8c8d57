package amqpx_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// late is how long a new binding takes to route messages on a broker with late bindings.
const late = 20 * time.Millisecond

// When a second client binds a destination, the broker confirms the binding even if it does not route messages yet.
func TestFirstUseWhileAnotherClientBinds(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, m *memory) {
		m.Declare("q.dead", nil)
		m.Declare("q", nil)
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
						t.Errorf("Send with a delay of %v: got %v, want no error", delay, err)
					}
				}
			})
		}
		wg.Wait()
		after(time.Minute)
		m.Holds("q", 6, 0)
		if left := ownBindings(m); len(left) > 0 {
			t.Errorf("bindings after a minute: got %+v, want none", left)
		}
	})
}

// ownBindings returns the bindings that a client has created only for itself. Only these have arguments.
func ownBindings(m *memory) []amqptest.Binding {
	return slices.DeleteFunc(m.Bindings("delay.deliver"), func(b amqptest.Binding) bool { return len(b.Arguments) == 0 })
}

// If a client cannot remove its own binding, it tries again later.
func TestOwnBindingsAreRemovedLater(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.open(amqpx.Config{}).mustSend(amqpx.Message{Queue: "q"})
		m.CutAt("queue.unbind", 1)
		after(40 * time.Second)
		if left := ownBindings(m); len(left) != 1 {
			t.Errorf("bindings after the first try, which lost the connection: got %+v, want one", left)
		}
		after(20 * time.Second)
		if left := ownBindings(m); len(left) > 0 {
			t.Errorf("bindings after a minute: got %+v, want none", left)
		}
	})
}

// If the caller gives up on the first use of a destination, the next use still waits until the binding routes messages.
func TestFirstUseAfterOneThatWasGivenUp(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: late}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		if err := c.Send(m.within(late/2), amqpx.Message{Queue: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first Send: got %v, want context.DeadlineExceeded", err)
		}
		c.mustSend(amqpx.Message{Queue: "q"})
		m.Holds("q", 1, 0)
	})
}

// Clients that start at the same time on an empty broker do not lose messages between the delay queues.
func TestStartWhileAnotherClientDeclares(t *testing.T) {
	two, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, Resolution: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", LateBindings: 3 * time.Second}, func(t *testing.T, m *memory) {
		m.Declare("q", nil)
		var wg sync.WaitGroup
		for _, start := range []time.Duration{0, time.Second, 3500 * time.Millisecond} {
			wg.Go(func() {
				<-time.After(start)
				c, err := m.tryOpen(t.Context(), amqpx.Config{Strategy: two})
				if err != nil {
					t.Errorf("Open after %v: got %v, want no error", start, err)
					return
				}
				defer c.Close(t.Context())
				if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: 200 * time.Millisecond}); err != nil {
					t.Errorf("Send by the client that started after %v: got %v, want no error", start, err)
				}
			})
		}
		wg.Wait()
		after(time.Minute)
		m.Holds("q", 3, 0)
		if _, ok := m.Queue(naming.LockQueue("delay")); ok {
			t.Error("the queue of the lock exists after all clients have started, want it deleted")
		}
	})
}

// A queue that another client is creating is visible before it accepts messages. A client that finds such an empty
// queue waits for the other client to finish, but not forever.
func TestFirstUseWaitsUntilTheQueueIsCreated(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		slow, fast := m.open(amqpx.Config{}), m.open(amqpx.Config{})
		created := false
		defer m.Control(func(f amqptest.Frame) amqptest.Action {
			first := !created && f.Method == "queue.declare-ok" && f.Name == "q"
			created = created || first
			return amqptest.Action{Drop: first}
		})()
		var both sync.WaitGroup
		defer both.Wait()
		both.Go(func() {
			if err := slow.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
				t.Error(err)
			}
		})
		after(time.Second)
		if _, ok := m.Queue("q"); !ok {
			t.Fatal("queue q does not exist a second after Send, want Send to have declared it")
		}
		began := time.Now()
		fast.mustSend(amqpx.Message{Queue: "q"})
		if took := time.Since(began); took < 3*time.Second || took > 8*time.Second {
			t.Errorf("Send to a queue that another client is creating took %v, want 3s to 8s", took)
		}
	})
}

// A client does not wait for the lock if it has no permission for it, if the queue has a consumer, or if it declares
// nothing.
func TestFirstUseWithoutTheLock(t *testing.T) {
	lock := naming.CreationLock("delay", "q")
	for name, given := range map[string]func(m *memory){
		"no permission": func(m *memory) { m.Deny("", amqptest.PermissionConfigure, "^"+regexp.QuoteMeta(lock)+"$") },
		"in use": func(m *memory) {
			if _, err := m.Channel().Consume("q", "", false, false, false, false, nil); err != nil {
				m.Fatal(err)
			}
		},
		"declares nothing": func(*memory) {},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				m.open(amqpx.Config{}).mustSend(amqpx.Message{Queue: "q", Delay: time.Hour})
				given(m)
				if _, err := m.Channel().QueueDeclare(lock, false, false, true, false, nil); err != nil && name != "no permission" {
					t.Fatalf("declaring the lock's queue: got %v, want no error", err)
				}
				cfg := amqpx.Config{}
				if name == "declares nothing" {
					cfg.Declare = amqpx.DeclareNothing
				}
				began := time.Now()
				m.open(cfg).mustSend(amqpx.Message{Queue: "q"})
				if took := time.Since(began); took > time.Second {
					t.Errorf("Send took %v, want at most 1s", took)
				}
			})
		})
	}
}

// Before RabbitMQ 4.3 a quorum queue accepts messages before it has its TTL. Such messages would stay in a route queue
// forever, and so would all messages behind them.
func TestMessagesThatStayInARouteQueueAreSentOn(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		d := topology.Destination{Exchange: "events", RoutingKey: "expired"}
		ch := m.Channel()
		if err := ch.ExchangeDeclare("events", "direct", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		m.Declare("q", nil)
		if err := ch.QueueBind("q", "expired", "events", false, nil); err != nil {
			t.Fatal(err)
		}
		route := d.RouteQueue("delay")
		route.MessageTTL = nil // a queue has no TTL immediately after its creation
		m.Declare(route.Name, route.Table())
		for range 3 {
			m.Publish("", route.Name, amqp.Publishing{})
		}
		m.Holds(route.Name, 3, 0)
		m.open(amqpx.Config{}).mustSend(amqpx.Message{Exchange: "events", RoutingKey: "expired", Delay: time.Hour})
		m.Holds(route.Name, 0, 0)
		m.Holds("q", 3, 0)
	})
}
