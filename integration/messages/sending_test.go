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
	moved := e.Duration >= steadyTolerance // the message may have been sent to another delay queue that has confirmed nothing yet
	if e.Err == nil && e.Tries > 1 && !moved && !strings.HasPrefix(e.ID, "half ") {
		w.repeated.Add(1)
	}
}

// If a user is not allowed to write to one of the delay queues, messages for that queue fail permanently with
// ErrNotSent. All other messages are sent on the existing connection. Once a message for their queue has been
// confirmed, they are sent at the first attempt.
func TestRefusedAccessIsFinalAndIsolated(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, refusedAccess)
}

// steadyTolerance lets a message that had to wait still use the delay queue that has already confirmed a message.
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
	for range 20 { // all messages use one delay queue, because with two it may be unclear which message the broker refused
		bad.Go(func() {
			err := client.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: 270 * time.Second})
			ae, ok := errors.AsType[*amqp.Error](err)
			if !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, context.DeadlineExceeded) || !ok || ae.Code != amqp.AccessRefused {
				t.Errorf("Send of a message without permission: got error %v, want amqpx.ErrNotSent with code 403 before the deadline", err)
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
		t.Errorf("a batch with permission for half of its messages: got error %v, want 100 failed messages", err)
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
		t.Errorf("%d messages were sent, %d of them after more than one try, on %d connections, want more than 0, 0 and 1", good.Load(), watcher.repeated.Load(), watcher.connected.Load())
	}
}

// If a permission is revoked while messages are being sent, the outcome of messages in flight may be unknown, and later
// messages fail with ErrNotSent.
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
		t.Errorf("the first failed send after the permission was revoked: got error %v, want amqpx.ErrNotSent or amqpx.ErrOutcomeUnknown before the deadline", err)
	}
	if err := send(time.Minute); !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second send: got error %v, want amqpx.ErrNotSent before the deadline", err)
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
			t.Fatalf("Send after the permission was granted again: got error %v, want nil before the deadline", err)
		}
	}
}

// odd is a strategy that adds a header to the messages for one destination. A broker refuses this header without saying
// which message has it.
type odd struct{ amqpx.Strategy }

func (o odd) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	r, err := o.Strategy.Route(dest, delay, tolerance)
	if dest.Queue == "odd" {
		r.Headers = amqp.Table{"CC": "not an array"}
	}
	return r, err
}

// If the broker closes the channel without saying which message it refused, only that message fails, with ErrNotSent.
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
			t.Fatalf("a batch with 6 messages that the broker refuses: got error %v, want 6 failed messages", err)
		}
		for i, f := range be.Failed {
			if i%50 != 25 || f.Unknown || !errors.Is(f, amqpx.ErrNotSent) {
				t.Errorf("message %d failed with %v, want only messages 25, 75, 125 and so on to fail, with amqpx.ErrNotSent", i, f)
			}
		}
		if n := watcher.connected.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}
