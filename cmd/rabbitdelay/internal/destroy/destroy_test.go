package destroy_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/destroy"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/removal"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// overview is a management API that describes a topology whose objects all exist and contain no messages.
type overview topology.Topology

func (o overview) Inspect(context.Context, topology.Topology) (plan.State, error) {
	found := plan.State{BindingsKnown: true, Exchanges: map[string]plan.Exchange{}, Queues: map[string]plan.Queue{}, Bindings: o.Bindings}
	for _, e := range o.Exchanges {
		found.Exchanges[e.Name] = plan.Exchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	for _, q := range o.Queues {
		found.Queues[q.Name] = plan.Queue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()}
	}
	return found, nil
}

// If a message arrives in a destination's queue at the last moment, the queue is kept, and so is its dead-letter queue.
func TestDestroyKeepsTheDeadLettersOfAQueueThatFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // no message is in transit
		top := topology.Topology{Destinations: []topology.Destination{{Queue: "orders"}}}.WithDestinationQueues("delay", topology.Quorum)
		if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), top, live.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		looks, last := 0, make(chan struct{})
		defer srv.Control(func(f amqptest.Frame) amqptest.Action {
			if !f.FromClient || f.Method != "queue.declare" || f.Name != "orders" {
				return amqptest.Action{}
			}
			if looks++; looks < 3 { // skip the two checks that precede the decision
				return amqptest.Action{}
			}
			close(last)
			return amqptest.Action{Delay: time.Second}
		})()
		go func() {
			<-last
			publish(t, conn, "orders")
		}()
		report, err := destroy.Run(t.Context(), live.Broker{Conn: conn, Inspector: overview(top)}, top, removal.Options{Destinations: true})
		if full, ok := errors.AsType[*removal.NotEmptyError](err); !ok || full.Total != 1 {
			t.Errorf("got %s and the error %v, want a *removal.NotEmptyError with Total = 1", report, err)
		}
		if left := srv.Queues(); !slices.Equal(left, []string{"orders", "orders.dead"}) {
			t.Errorf("the remaining queues: got %v, want [orders orders.dead]", left)
		}
	})
}

// lagging is a management API that reports a message in every queue for some time, although the queues are empty.
type lagging struct {
	overview

	from, until time.Time
}

func (l lagging) Inspect(ctx context.Context, t topology.Topology) (plan.State, error) {
	found, err := l.overview.Inspect(ctx, t)
	if now := time.Now(); now.Before(l.from) || !now.Before(l.until) {
		return found, err
	}
	for name, q := range found.Queues {
		q.Messages = 1
		found.Queues[name] = q
	}
	return found, err
}

// The management API's counts are up to 10 s old. If they include a message during Run that was purged just before, Run
// succeeds. If the count does not go away, Run refuses.
func TestRunWaitsForOutdatedCounts(t *testing.T) {
	for _, k := range []struct {
		name        string
		from, until time.Duration // since the start
		want        error
	}{
		{"at the start", 0, 9 * time.Second, nil},
		{"while it waits for messages in transit", 500 * time.Millisecond, 10 * time.Second, nil},
		{"to the end", 500 * time.Millisecond, time.Hour, removal.ErrNotEmpty},
	} {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				layout, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Hour}})
				if err != nil {
					t.Fatal(err)
				}
				top, err := layout.Topology().Merge(topology.DeliveryTopology(topology.DefaultPrefix))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), top, live.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				management := lagging{overview(top), began.Add(k.from), began.Add(k.until)}
				report, err := destroy.Run(t.Context(), live.Broker{Conn: conn, Inspector: management}, top, removal.Options{})
				if !errors.Is(err, k.want) {
					t.Errorf("got %s and the error %v, want %v", report, err, k.want)
				}
				if left := len(srv.Queues()); left > 0 != (k.want != nil) {
					t.Errorf("%d queues are left after the error %v, want queues to be left only after an error", left, err)
				}
			})
		})
	}
}

func publish(t *testing.T, conn *amqp.Connection, queue string) {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Error(err)
		return
	}
	if err := ch.Confirm(false); err != nil {
		t.Error(err)
	}
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
	if err != nil || !c.Wait() {
		t.Errorf("publishing: got error %v, want nil and a confirm", err)
	}
}

// blockedConn is a connection whose Channel blocks until release is closed.
type blockedConn struct{ release chan struct{} }

func (c blockedConn) Channel() (*amqp.Channel, error) {
	<-c.release
	return nil, amqp.ErrClosed
}

func TestRunEndsWithTheContext(t *testing.T) {
	conn := blockedConn{make(chan struct{})}
	defer close(conn.release)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := destroy.Run(ctx, live.Broker{Conn: conn}, topology.DeliveryTopology("p"), removal.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// deleting is a management API that shows queues as unavailable for some time, as it does while they are deleted.
type deleting struct {
	overview

	from, until time.Time
}

func (d deleting) Inspect(ctx context.Context, t topology.Topology) (plan.State, error) {
	found, err := d.overview.Inspect(ctx, t)
	if now := time.Now(); now.Before(d.from) || !now.Before(d.until) {
		return found, err
	}
	for name, q := range found.Queues {
		q.Unavailable = "its process is gone"
		found.Queues[name] = q
	}
	return found, err
}

// While another process deletes a queue, the queue does not answer for a moment. That must not stop Run. A queue that
// does not answer for longer must.
func TestRunWaitsForQueuesThatAreBeingDeleted(t *testing.T) {
	for _, k := range []struct {
		name        string
		from, until time.Duration // since the start
		want        error
	}{
		{"at the start", 0, 2 * time.Second, nil},
		{"while it waits for messages in transit", 500 * time.Millisecond, 5 * time.Second, nil},
		{"for a minute", 0, time.Minute, removal.ErrUnseen},
		{"to the end", 500 * time.Millisecond, time.Hour, removal.ErrUnseen},
	} {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				b, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}, Resolution: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				top := b.Topology()
				if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), top, live.ApplyOptions{}); err != nil {
					t.Fatal(err)
				}
				api := deleting{overview(top), time.Now().Add(k.from), time.Now().Add(k.until)}
				if _, err := destroy.Run(t.Context(), live.Broker{Conn: conn, Inspector: api}, top, removal.Options{}); !errors.Is(err, k.want) {
					t.Errorf("got %v, want %v", err, k.want)
				}
			})
		})
	}
}
