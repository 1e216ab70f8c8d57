package messages_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/proxy"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// throughProxy opens a client whose connections the test can break.
func throughProxy(t testing.TB, cfg amqpx.Config) (*amqpx.Client, *proxy.Proxy) {
	t.Helper()
	p, url, err := proxy.ForURL(broker.Shared(t, broker.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	cfg.URL = url
	return suite.OpenClient(t, cfg), p
}

// collector is a handler that keeps the messages that it receives.
type collector struct {
	mu    sync.Mutex
	got   []*amqpx.Delivery
	early int
	more  chan struct{}
}

func newCollector() *collector { return &collector{more: make(chan struct{}, 1)} }

func (c *collector) handle(_ context.Context, d *amqpx.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !d.DueAt.IsZero() && time.Now().Before(d.DueAt) {
		c.early++
	}
	c.got = append(c.got, d)
	select {
	case c.more <- struct{}{}:
	default:
	}
	return nil
}

func (c *collector) ids() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]int{}
	for _, d := range c.got {
		ids[d.ID]++
	}
	return ids
}

// await waits until done returns true.
func (c *collector) await(t testing.TB, what string, done func(got []*amqpx.Delivery) bool) {
	t.Helper()
	deadline := time.After(suite.Patience)
	for {
		c.mu.Lock()
		ok := done(c.got)
		n := len(c.got)
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-c.more:
		case <-deadline:
			suite.LogQueues(t)
			t.Fatalf("timed out after %v waiting for %s; got %d deliveries", suite.Patience, what, n)
		}
	}
}

func TestSendsSurviveLostConnections(t *testing.T) {
	t.Parallel()
	c, p := throughProxy(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, col.handle)

	const senders, each = 8, 60
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				if err := c.Send(ctx, amqpx.Message{ID: fmt.Sprintf("%d-%d", s, i), Queue: q, Delay: 100 * time.Millisecond}); err != nil {
					t.Errorf("sending message %d-%d: %v", s, i, err)
				}
				if s == 0 && i%20 == 10 {
					p.Cut()
				}
			}
		})
	}
	wg.Wait()
	if p.Cuts() < 3 {
		t.Fatalf("the proxy cut %d connections, want at least 3 for a meaningful test", p.Cuts())
	}
	col.await(t, "every message", func(got []*amqpx.Delivery) bool {
		ids := map[string]bool{}
		for _, d := range got {
			ids[d.ID] = true
		}
		return len(ids) == senders*each
	})
	if col.early > 0 {
		t.Errorf("%d messages were handled before they were due, want 0", col.early)
	}
}

func TestBatchSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	c, p := throughProxy(t, amqpx.Config{MaxInFlight: 64})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, col.handle, amqpx.WithConcurrency(1))
	msgs := make([]amqpx.Message, 2000)
	for i := range msgs {
		msgs[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: q, Delay: 50 * time.Millisecond, Body: make([]byte, 500)}
	}
	var frames atomic.Int64
	p.CutAt(func(f proxy.Frame) bool { return f.Is(proxy.ToBroker, proxy.BasicPublish) && frames.Add(1) == 1000 })
	if err := c.SendBatch(t.Context(), msgs); err != nil {
		t.Fatal(err)
	}
	if frames.Load() < 2000 {
		t.Fatalf("the proxy saw %d publishes, want at least 2000 for a meaningful test", frames.Load())
	}
	col.await(t, "every message", func(got []*amqpx.Delivery) bool { return len(got) >= len(msgs) && len(distinct(got)) == len(msgs) })
}

func distinct(got []*amqpx.Delivery) map[string]bool {
	ids := map[string]bool{}
	for _, d := range got {
		ids[d.ID] = true
	}
	return ids
}

// If a connection is lost between the publish and its confirm, the send is repeated with the same id
// and succeeds. The message may arrive twice.
func TestCutBeforeTheConfirm(t *testing.T) {
	t.Parallel()
	c, p := throughProxy(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, col.handle)
	if err := c.Send(t.Context(), amqpx.Message{ID: "warm", Queue: q}); err != nil {
		t.Fatal(err)
	}
	var cut atomic.Bool
	p.CutAt(func(f proxy.Frame) bool { return f.Is(proxy.ToClient, proxy.BasicAck) && !cut.Swap(true) })
	if err := c.Send(t.Context(), amqpx.Message{ID: "again", Queue: q, Delay: 200 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if !cut.Load() {
		t.Fatal("the proxy cut no connection, want one cut between the publish and the confirm")
	}
	col.await(t, "the message", func([]*amqpx.Delivery) bool {
		for _, d := range col.got {
			if d.ID == "again" {
				return true
			}
		}
		return false
	})
}

func TestOutcomeUnknownDiffersFromNotSent(t *testing.T) {
	t.Parallel()
	c, p := throughProxy(t, amqpx.Config{})
	q := suite.NewQueue(t)
	if err := c.Send(t.Context(), amqpx.Message{Queue: q}); err != nil {
		t.Fatal(err)
	}
	send := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		return c.Send(ctx, amqpx.Message{ID: "m", Queue: q})
	}
	t.Run("cut before the confirm, and no way back", func(t *testing.T) {
		p.CutAt(func(f proxy.Frame) bool {
			if f.Is(proxy.ToClient, proxy.BasicAck) {
				p.Refuse(true)
				return true
			}
			return false
		})
		err := send()
		var se *amqpx.SendError
		if !errors.Is(err, amqpx.ErrOutcomeUnknown) || errors.Is(err, amqpx.ErrNotSent) || !errors.As(err, &se) || se.Tries != 1 || se.ID != "m" {
			t.Fatalf("got error %v (%+v), want amqpx.ErrOutcomeUnknown after one try for message m", err, se)
		}
	})
	t.Run("no connection", func(t *testing.T) {
		err := send()
		if !errors.Is(err, amqpx.ErrNotSent) || errors.Is(err, amqpx.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got error %v, want amqpx.ErrNotSent and context.DeadlineExceeded, but not amqpx.ErrOutcomeUnknown", err)
		}
	})
	p.CutAt(nil)
	p.Refuse(false)
	if err := c.Send(t.Context(), amqpx.Message{Queue: q}); err != nil {
		t.Fatalf("Send after the outage: got %v, want no error", err)
	}
	t.Run("the broker does not answer", func(t *testing.T) {
		p.Stall(proxy.ToBroker, true)
		defer p.Stall(proxy.ToBroker, false)
		// The messages exceed the sockets' buffers. No publish may hang because of that.
		errs := make(chan error, 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range cap(errs) {
			go func() { errs <- c.Send(ctx, amqpx.Message{Queue: q, Body: make([]byte, 200<<10)}) }()
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, amqpx.ErrOutcomeUnknown) && !errors.Is(err, amqpx.ErrNotSent) {
				t.Errorf("Send during the stall: got error %v, want amqpx.ErrOutcomeUnknown or amqpx.ErrNotSent", err)
			}
		}
	})
	if err := c.Send(t.Context(), amqpx.Message{Queue: q}); err != nil {
		t.Fatalf("Send after the stall: got %v, want no error", err)
	}
}

func TestCutBeforeTheAcknowledgement(t *testing.T) {
	t.Parallel()
	c, p := throughProxy(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	var cut atomic.Bool
	p.CutAt(func(f proxy.Frame) bool { return f.Is(proxy.ToBroker, proxy.BasicAck) && !cut.Swap(true) })
	suite.Consume(t, c, q, col.handle)
	if err := c.Send(t.Context(), amqpx.Message{ID: "twice", Queue: q}); err != nil {
		t.Fatal(err)
	}
	col.await(t, "the second delivery", func(got []*amqpx.Delivery) bool { return len(got) == 2 })
	if d := col.got[1]; d.ID != "twice" || !d.Redelivered || d.Attempt != 1 {
		t.Fatalf(`second delivery: got %+v, want ID = "twice", Redelivered = true and Attempt = 1`, d)
	}
}

type stateLog struct {
	mu     sync.Mutex
	states []amqpx.StateEvent
}

func (l *stateLog) add(e amqpx.StateEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = append(l.states, e)
}

func (l *stateLog) saw(s amqpx.State) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.states {
		if e.State == s {
			return true
		}
	}
	return false
}

// During a memory alarm, publishers are blocked. The state StateBlocked is reported, and a send fails at its deadline
// with an error that gives the reason. Consuming continues, and after the alarm a send succeeds.
func TestBlockedBroker(t *testing.T) {
	b := broker.Shared(t, broker.Options{})
	if b.Source() == broker.Environment {
		t.Skip("skipped: the broker at AMQP_URL is not ours to raise an alarm on")
	}
	states := &stateLog{}
	c := suite.OpenClient(t, amqpx.Config{Hooks: []amqpx.Hook{{ConnectionState: states.add}}})
	q := suite.NewQueue(t)
	col := newCollector()
	if err := c.Send(t.Context(), amqpx.Message{ID: "before", Queue: q}); err != nil {
		t.Fatal(err)
	}
	ctl := func(args ...string) {
		t.Helper()
		if out, err := b.Ctl(t.Context(), args...); err != nil {
			t.Fatalf("rabbitmqctl %v: %v\n%s", args, err, out)
		}
	}
	lift := func() { ctl("set_vm_memory_high_watermark", "0.6") }
	ctl("set_vm_memory_high_watermark", "0.00001")
	lifted := false
	defer func() {
		if !lifted {
			lift()
		}
	}()

	// The broker raises the alarm at its next memory check.
	suite.Eventually(t, "sends are blocked", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Send(ctx, amqpx.Message{ID: "during", Queue: q})
		if err != nil && (!errors.Is(err, amqpx.ErrBlocked) || !errors.Is(err, context.DeadlineExceeded)) {
			t.Fatalf("Send: got error %v, want nil before the alarm, and amqpx.ErrBlocked at the deadline during it", err)
		}
		return err != nil
	})
	if !states.saw(amqpx.StateBlocked) {
		t.Error("got no event with the state amqpx.StateBlocked, want one")
	}
	suite.Consume(t, c, q, col.handle)
	col.await(t, "the message sent before the alarm", func(got []*amqpx.Delivery) bool { return distinct(got)["before"] })

	done := make(chan error, 1)
	go func() { done <- c.Send(t.Context(), amqpx.Message{ID: "after", Queue: q}) }()
	lift()
	lifted = true
	if err := <-done; err != nil {
		t.Fatalf("Send after the alarm: got %v, want no error", err)
	}
	col.await(t, "the message sent during the alarm", func(got []*amqpx.Delivery) bool { return distinct(got)["after"] })
	suite.Eventually(t, "the state StateUnblocked is reported", func() bool { return states.saw(amqpx.StateUnblocked) })
}

// A deleted delay queue is declared again, and the message that the broker returned is sent.
func TestMissingDelayQueueIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	const delay = 300 * time.Millisecond
	single, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, Resolution: delay}) // a single delay queue, so that every send uses the same one even if the send is slow
	if err != nil {
		t.Fatal(err)
	}
	c := suite.OpenClient(t, amqpx.Config{Strategy: single})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, col.handle)
	send := func() error { return c.Send(t.Context(), amqpx.Message{Queue: q, Delay: delay}) }
	if err := send(); err != nil {
		t.Fatal(err)
	}
	col.await(t, "the first message", func(got []*amqpx.Delivery) bool { return len(got) == 1 })
	route, err := single.Route(topology.Destination{Queue: q}, delay, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := suite.DeleteQueue(t, route.Queue); err != nil {
		t.Fatal(err)
	}
	if err := send(); err != nil {
		t.Fatalf("Send through %s: got %v, want no error", route.Exchange, err)
	}
	col.await(t, "the second message", func(got []*amqpx.Delivery) bool { return len(got) == 2 })
}

// If a destination is deleted, a client that only sends notices it without reconnecting and declares it again, so that
// messages that are due later arrive.
func TestDeletedDestinationIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{RecheckInterval: 50 * time.Millisecond})
	q := suite.NewQueue(t)
	suite.Send(t, c, amqpx.Message{ID: "1", Queue: q, Delay: time.Hour})
	if err := suite.DeleteQueue(t, q); err != nil {
		t.Fatal(err)
	}
	// The check runs in the background, and the binding is made after the queue.
	suite.Eventually(t, "the queue is declared and bound again", func() bool {
		suite.Send(t, c, amqpx.Message{ID: "2", Queue: q, Delay: time.Hour})
		return slices.Contains(suite.BindingsOf(t, q), "delay.deliver")
	})
	col := newCollector()
	suite.Consume(t, suite.OpenClient(t, amqpx.Config{}), q, col.handle)
	suite.Send(t, c, amqpx.Message{ID: "3", Queue: q, Delay: 100 * time.Millisecond})
	col.await(t, "a message that was sent after the queue was declared again", func(got []*amqpx.Delivery) bool { return len(got) == 1 })
}

func TestImpossibleDestination(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	err := c.Send(t.Context(), amqpx.Message{Exchange: "no.such.exchange", RoutingKey: "k", Delay: time.Second})
	if !errors.Is(err, topology.ErrDestination) || !errors.Is(err, amqpx.ErrNotSent) || !strings.Contains(err.Error(), "no.such.exchange") {
		t.Errorf(`missing exchange: got error %v, want topology.ErrDestination and amqpx.ErrNotSent containing "no.such.exchange"`, err)
	}
	if err := c.Send(t.Context(), amqpx.Message{Queue: "delay.parked", Delay: time.Second}); !errors.Is(err, topology.ErrDestination) {
		t.Errorf("one of the layout's own queues as the destination: got error %v, want topology.ErrDestination", err)
	}
	bare := suite.OpenClient(t, amqpx.Config{Declare: amqpx.DeclareNothing})
	if err := bare.Send(t.Context(), amqpx.Message{Queue: "no.such.queue", Delay: time.Second}); !errors.Is(err, topology.ErrDestination) {
		t.Errorf("Send to a missing queue without the permission to declare it: got %v, want topology.ErrDestination", err)
	}
}

func TestCloseEndsWhatWaits(t *testing.T) {
	broker.Shared(t, broker.Options{}) // start the broker first, so that its goroutines do not count as leaks
	leaks := goleak.IgnoreCurrent()
	c, p := throughProxy(t, amqpx.Config{})
	q := suite.NewQueue(t)
	running := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		running <- c.Consume(context.Background(), q, func(ctx context.Context, _ *amqpx.Delivery) error {
			close(started)
			return nil
		})
	}()
	if err := c.Send(t.Context(), amqpx.Message{Queue: q}); err != nil {
		t.Fatal(err)
	}
	<-started
	p.Refuse(true)
	p.Cut()
	waiting := make(chan error, 1)
	go func() { waiting <- c.Send(t.Context(), amqpx.Message{Queue: q}) }()
	suite.Eventually(t, "Stats reports the waiting send", func() bool { return c.Stats().Sending == 1 })
	ctx, cancel := contextWithin(t, 100*time.Millisecond)
	defer cancel()
	if left, ok := errors.AsType[*amqpx.CloseError](c.Close(ctx)); !ok || left.Unconfirmed != 1 {
		t.Errorf("Close returned %v, want a CloseError with Unconfirmed = 1", left)
	}
	if err := <-waiting; !errors.Is(err, amqpx.ErrClosed) {
		t.Errorf("a waiting Send returned %v, want amqpx.ErrClosed", err)
	}
	if err := <-running; err != nil && !errors.Is(err, amqpx.ErrClosed) {
		t.Errorf("Consume returned %v, want no error or ErrClosed", err)
	}
	if err := c.Send(t.Context(), amqpx.Message{Queue: q}); !errors.Is(err, amqpx.ErrClosed) {
		t.Errorf("Send after Close returned %v, want amqpx.ErrClosed", err)
	}
	if err := c.Consume(t.Context(), q, func(context.Context, *amqpx.Delivery) error { return nil }); !errors.Is(err, amqpx.ErrClosed) {
		t.Errorf("Consume after Close returned %v, want amqpx.ErrClosed", err)
	}
	p.Close()
	goleak.VerifyNone(t, leaks)
}

func contextWithin(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// particular has the options of a separate broker for tests that change settings on which other tests rely.
var particular = broker.Options{Config: "max_message_size = 100000\n"}

// If a message exceeds the broker's size limit, the broker closes the channel that all senders share. Only the large
// message fails permanently, and the others are sent. The client then rejects further messages of that size without
// publishing them.
func TestBodyOverTheBrokersLimit(t *testing.T) {
	b := broker.Shared(t, particular)
	c := suite.OpenClient(t, amqpx.Config{URL: b.URL()})
	const small = 200
	msgs := make([]amqpx.Message, small+1)
	for i := range msgs {
		msgs[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: "sizes", Body: make([]byte, 100)}
	}
	msgs[small/2].Body = make([]byte, 100_001)
	err := c.SendBatch(t.Context(), msgs)
	batch, ok := errors.AsType[*amqpx.BatchError](err)
	if !ok || len(batch.Failed) != 1 || batch.Failed[small/2] == nil {
		t.Fatalf("batch: got error %v, want only message %d to fail", err, small/2)
	}
	const want = "100001 bytes; the broker accepts at most 100000"
	if err := batch.Failed[small/2]; !errors.Is(err, amqpx.ErrNotSent) || !errors.Is(err, amqpx.ErrMessage) || !strings.Contains(err.Error(), want) {
		t.Errorf("batch: got error %v, want amqpx.ErrNotSent and amqpx.ErrMessage containing %q", err, want)
	}
	err = c.Send(t.Context(), amqpx.Message{Queue: "sizes", Body: make([]byte, 200_000)})
	if _, sent := errors.AsType[*amqpx.SendError](err); sent || !errors.Is(err, amqpx.ErrMessage) {
		t.Errorf("the next large message: got error %v, want amqpx.ErrMessage without an attempt to send it", err)
	}
	seen := map[string]bool{}
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	err = c.Consume(ctx, "sizes", func(_ context.Context, d *amqpx.Delivery) error {
		if seen[d.ID] = true; len(seen) == small {
			cancel()
		}
		return nil
	}, amqpx.WithConcurrency(1))
	if err != nil || len(seen) != small || seen[fmt.Sprint(small/2)] {
		t.Errorf("%d messages arrived (error %v), want the %d small ones", len(seen), err, small)
	}
}
