package messages_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// sendWatcher counts connections, and sends that needed more than one attempt, except those of a
// batch whose ids begin with "half ".
type sendWatcher struct{ connected, repeated atomic.Int64 }

func (w *sendWatcher) connection(e amqpx.StateEvent) {
	if e.Connection == "publish" && e.State == amqpx.StateConnected {
		w.connected.Add(1)
	}
}

func (w *sendWatcher) sent(_ context.Context, e amqpx.SendEnd) {
	moved := e.Duration >= steadyTolerance // may have gone to another delay queue, which has confirmed nothing yet
	if e.Err == nil && e.Tries > 1 && !moved && !strings.HasPrefix(e.ID, "half ") {
		w.repeated.Add(1)
	}
}

// A user is not allowed to write to one of the delay queues. Messages for that queue soon
// fail permanently, as not sent. All other messages are sent on the connection that
// existed before, at the first attempt once a message for their queue has been confirmed.
func TestRefusedAccessIsFinalAndIsolated(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, refusedAccess)
}

// steadyTolerance makes a message that had to wait keep using the delay queue that has confirmed a message.
const steadyTolerance = 10 * time.Second

func refusedAccess(t *testing.T, v *suite.Vhost) {
	admin := suite.OpenClient(t, amqpx.Config{URL: v.URL})
	if err := admin.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	watcher := &sendWatcher{}
	client := suite.OpenClient(t, amqpx.Config{
		URL:   v.User(t, "narrow", "", [3]string{".*", `^(delay\.(bucket\.([0-9]+s|level-.*)|deliver|route.*|parked)|orders.*)$`, ".*"}),
		Hooks: []amqpx.Hook{{ConnectionState: watcher.connection, SendEnd: watcher.sent}}, Declare: amqpx.DeclareNothing,
	})

	steady := amqpx.Message{Queue: "orders", Delay: 40 * time.Second, Tolerance: steadyTolerance}
	if err := client.Send(t.Context(), steady); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var good atomic.Int64
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for ctx.Err() == nil {
				if err := client.Send(t.Context(), steady); err != nil {
					t.Errorf("Send of a permitted message: got %v, want no error", err)
					return
				}
				good.Add(1)
			}
		})
	}
	var bad sync.WaitGroup
	for range 20 { // all messages use one delay queue, because with two it may be unclear which message was refused
		bad.Go(func() {
			err := client.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: 270 * time.Second})
			ae, ok := errors.AsType[*amqp.Error](err)
			if !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, context.DeadlineExceeded) || !ok || ae.Code != amqp.AccessRefused {
				t.Errorf("Send of a message without permission: got %v, want ErrNotSent with code 403", err)
			}
		})
	}
	bad.Wait()
	batch := make([]amqpx.Message, 200)
	for i := range batch {
		// Both halves are new to the client, and share the channel for unproven destinations.
		batch[i] = amqpx.Message{ID: fmt.Sprint("half ", i), Queue: "orders", Delay: 30 * time.Second}
		if i%2 == 1 {
			batch[i].Delay = 570 * time.Second
		}
	}
	err := client.SendBatch(t.Context(), batch)
	be, ok := errors.AsType[*amqpx.BatchError](err)
	if !ok || len(be.Failed) != 100 {
		t.Errorf("a batch of which half may be sent: got %v, want 100 failed messages", err)
	} else {
		for i, f := range be.Failed {
			if i%2 == 0 || f.Unknown {
				t.Errorf("message %d of the batch: got %v, want only odd messages to fail, with a known outcome", i, f)
			}
		}
	}
	cancel()
	senders.Wait()
	if good.Load() == 0 || watcher.connected.Load() != 1 || watcher.repeated.Load() != 0 {
		t.Errorf("%d sent, %d at a later try, %d connections, want some, none, 1", good.Load(), watcher.repeated.Load(), watcher.connected.Load())
	}
}

// A permission is revoked while messages are being sent: messages in flight may have been accepted,
// later ones were not sent.
func TestRevokedAccess(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, revokedAccess)
}

func revokedAccess(t *testing.T, v *suite.Vhost) {
	const name = "revoked"
	client := suite.OpenClient(t, amqpx.Config{URL: v.User(t, name, "", [3]string{".*", ".*", ".*"})})
	send := func(d time.Duration) error {
		return client.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: d})
	}
	if err := errors.Join(send(time.Minute), send(time.Second)); err != nil {
		t.Fatal(err)
	}
	v.Permit(t, name+"-"+v.Name, [3]string{".*", `^(delay\.(bucket\.[0-9]+s|deliver)|orders.*)$`, ".*"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	for err == nil && ctx.Err() == nil { // a channel caches permissions for a while
		err = send(time.Minute)
	}
	if !errors.Is(err, amqpx.ErrOutcomeUnknown) && !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first send after the permission was revoked: got %v, want ErrNotSent or ErrOutcomeUnknown before the deadline", err)
	}
	if err := send(time.Minute); !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second: got %v, want amqpx.ErrNotSent and not context.DeadlineExceeded", err)
	}
	if err := send(time.Second); err != nil {
		t.Errorf("Send to another queue: got %v, want no error", err)
	}
	v.Permit(t, name+"-"+v.Name, [3]string{".*", ".*", ".*"})
	for {
		err := client.Send(ctx, amqpx.Message{Queue: "orders", Delay: time.Minute})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("giving back: got %v, want no error before the context ends", err)
		}
	}
}

// odd is a strategy whose routes to one destination carry a header that a broker refuses without
// saying which message had it.
type odd struct{ amqpx.Strategy }

func (o odd) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	r, err := o.Strategy.Route(dest, delay, tolerance)
	if dest.Queue == "odd" {
		r.Headers = amqp.Table{"CC": "not an array"}
	}
	return r, err
}

// When the broker closes the channel without saying which message it refused, that message fails as
// not sent, and no other message fails.
func TestRefusedMessageThatTheBrokerDoesNotName(t *testing.T) {
	t.Parallel()
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		bucket, err := dlx.NewBucket(dlx.BucketConfig{})
		if err != nil {
			t.Fatal(err)
		}
		watcher := &sendWatcher{}
		client := suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: odd{bucket}, Hooks: []amqpx.Hook{{
			ConnectionState: watcher.connection, SendEnd: watcher.sent,
		}}})
		batch := make([]amqpx.Message, 300)
		for i := range batch {
			batch[i] = amqpx.Message{Queue: "even", Delay: time.Duration(i%7) * time.Minute}
			if i%50 == 25 {
				batch[i].Queue = "odd"
			}
		}
		err = client.SendBatch(t.Context(), batch)
		be, ok := errors.AsType[*amqpx.BatchError](err)
		if !ok || len(be.Failed) != 6 {
			t.Fatalf("a batch with 6 messages that are refused: got %v, want 6 failed messages", err)
		}
		for i, f := range be.Failed {
			if i%50 != 25 || f.Unknown || !errors.Is(f, amqpx.ErrNotSent) {
				t.Errorf("message %d failed with %v, want only every 50th to fail", i, f)
			}
		}
		if n := watcher.connected.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}
