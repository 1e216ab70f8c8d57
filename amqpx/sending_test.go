package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// onMemory runs a test in a bubble with a broker in memory and a client of it.
func onMemory(t *testing.T, opts amqptest.Options, cfg amqpx.Config, test func(t *testing.T, srv *amqptest.Server, c *amqpx.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(opts)
		defer srv.Close()
		cfg.URL, cfg.Dial = srv.URL(), srv.Dial
		c, err := amqpx.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		test(t, srv, c)
	})
}

// sendSlowest sends n messages from as many goroutines and gives the longest time
// that one took.
func sendSlowest(t *testing.T, c *amqpx.Client, n int, m amqpx.Message) (slowest time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			start := time.Now()
			if err := c.Send(t.Context(), m); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, time.Since(start))
		})
	}
	all.Wait()
	return slowest
}

// A delay queue that confirms nothing holds up its own messages: others take no
// time at all in a bubble.
func TestAQueueThatDoesNotConfirmHoldsUpItsOwn(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{MaxInFlight: 64}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		sendSlowest(t, c, 1, amqpx.Message{Queue: "orders", Delay: time.Minute})
		undo := srv.Silence("delay.bucket.30m")
		var stuck sync.WaitGroup
		var unknown, notSent atomic.Int64
		for range 300 {
			stuck.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := c.Send(ctx, amqpx.Message{Queue: "orders", Delay: 30 * time.Minute})
				switch {
				case errors.Is(err, amqpx.ErrOutcomeUnknown):
					unknown.Add(1)
				case errors.Is(err, amqpx.ErrNotSent) && strings.Contains(err.Error(), "delay.bucket.30m has confirmed nothing"):
					notSent.Add(1)
				default:
					t.Errorf("into the stuck queue: %v", err)
				}
			})
		}
		synctest.Wait()
		for range 20 {
			if d := sendSlowest(t, c, 100, amqpx.Message{Queue: "orders", Delay: 15 * time.Minute}); d > 0 {
				t.Errorf("a message beside the stuck queue took %v", d)
			}
			<-time.After(100 * time.Millisecond)
		}
		start := time.Now()
		batch := make([]amqpx.Message, 500)
		for i := range batch {
			batch[i] = amqpx.Message{Queue: "orders", Delay: time.Duration(1+i%15) * time.Minute}
		}
		if err := c.SendBatch(t.Context(), batch); err != nil || time.Since(start) > 0 {
			t.Errorf("a batch beside the stuck queue: %v after %v", err, time.Since(start))
		}
		stuck.Wait()
		if n := unknown.Load(); n < 32 || n > 64 || n+notSent.Load() != 300 {
			t.Errorf("%d messages unknown, %d not sent; want half of the window and a few more unknown, 300 in all", n, notSent.Load())
		}
		undo()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: 30 * time.Minute}); err != nil {
			t.Errorf("after it confirms again: %v", err)
		}
	})
}

// A batch of which a part enters a stuck queue: the rest is confirmed, and those
// are the ones that failed.
func TestABatchWithAStuckQueue(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		defer srv.Silence("delay.bucket.2m")()
		batch := make([]amqpx.Message, 5000)
		for i := range batch {
			batch[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: "orders", Delay: time.Duration(1+i%5) * time.Minute}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		be, ok := errors.AsType[*amqpx.BatchError](c.SendBatch(ctx, batch))
		if !ok || len(be.Failed) != 1000 {
			t.Fatalf("got %v", be)
		}
		for i := range be.Failed {
			if i%5 != 1 {
				t.Errorf("message %d failed: %v", i, be.Failed[i])
			}
		}
	})
}

// A full queue (reject-publish) refuses with a nack: the error at the deadline says so.
func TestNackIsInTheError(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{SendTimeout: 5 * time.Second}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		undo := srv.Nack("orders")
		m := amqpx.Message{Queue: "orders"}
		for name, send := range map[string]func() error{
			"Send":      func() error { return c.Send(t.Context(), m) },
			"SendBatch": func() error { return c.SendBatch(t.Context(), []amqpx.Message{m}) },
		} {
			if err := send(); !errors.Is(err, amqpx.ErrNacked) || !errors.Is(err, amqpx.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
		time.AfterFunc(time.Second, undo)
		if err := c.Send(t.Context(), m); err != nil {
			t.Errorf("a queue that has room again: %v", err)
		}
	})
}

// The connection ends while a missing queue is declared again: the message is
// sent on the next one.
func TestDeclaringAgainOnALostConnectionIsNotFinal(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		m := amqpx.Message{Queue: "orders", Delay: time.Minute}
		if err := c.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDelete("delay.bucket.1m", false, false, false); err != nil {
			t.Fatal(err)
		}
		srv.CutAt("exchange.declare", 1)
		if err := c.Send(t.Context(), m); err != nil {
			t.Errorf("got %v", err)
		}
	})
}

// A user without access to some delay queues: final within seconds, not sent, then
// at once, and nobody else notices.
func TestRefusedAccess(t *testing.T) {
	w := &tryCounter{}
	onMemory(t, amqptest.Options{}, amqpx.Config{Hooks: []amqpx.Hook{w}}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		sendSlowest(t, c, 1, amqpx.Message{Queue: "orders", Delay: 30 * time.Second})
		undo := srv.Deny("", amqptest.Write, `^delay\.bucket\.[0-9]+m$`)
		bad := amqpx.Message{Queue: "orders", Delay: 5 * time.Minute}
		for i := range 3 {
			start := time.Now()
			err := c.Send(t.Context(), bad)
			ae, ok := errors.AsType[*amqp.Error](err)
			if !errors.Is(err, amqpx.ErrNotSent) || !ok || ae.Code != amqp.AccessRefused {
				t.Fatalf("got %v", err)
			}
			if d := time.Since(start); d > 2*time.Second || i > 0 && d > 0 {
				t.Errorf("try %d took %v", i, d)
			}
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { _ = c.Send(t.Context(), bad) })
			all.Go(func() {
				if d := sendSlowest(t, c, 20, amqpx.Message{Queue: "orders", Delay: 30 * time.Second}); d > 0 {
					t.Errorf("a message beside the refused ones took %v", d)
				}
			})
		}
		all.Wait()
		if n := w.repeated.Load(); n > 0 {
			t.Errorf("%d messages beside the refused ones were published twice", n)
		}
		undo()
		<-time.After(2 * time.Second)
		if err := c.Send(t.Context(), bad); err != nil {
			t.Errorf("with access: %v", err)
		}
	})
}

// tryCounter counts messages that took more than one try and were confirmed.
type tryCounter struct{ repeated atomic.Int64 }

func (w *tryCounter) SendStart(ctx context.Context, _ *amqpx.Message) context.Context { return ctx }

func (w *tryCounter) SendEnd(_ context.Context, e amqpx.SendEnd) {
	if e.Err == nil && e.Tries > 1 {
		w.repeated.Add(1)
	}
}

// Messages of one delay keep their order over the move from the trial channel to
// the shared one.
func TestOrderAcrossChannels(t *testing.T) {
	onMemory(t, amqptest.Options{}, amqpx.Config{}, func(t *testing.T, srv *amqptest.Server, c *amqpx.Client) {
		batch := make([]amqpx.Message, 3000)
		for i := range batch {
			batch[i] = amqpx.Message{ID: fmt.Sprintf("%05d", i), Queue: "orders", Delay: time.Minute}
		}
		if err := c.SendBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		q, _ := srv.Queue("orders")
		var ids []string
		for _, m := range q.Messages {
			ids = append(ids, m.MessageId)
		}
		if len(ids) != len(batch) || !slices.IsSorted(ids) {
			t.Errorf("%d messages, in order: %t", len(ids), slices.IsSorted(ids))
		}
	})
}
