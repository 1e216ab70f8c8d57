package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// small is a ledger in memory, for scenarios in which no process is killed.
type small struct {
	t      *testing.T
	broker *broker.Broker
	client *amqpx.Client
	prefix string
	queue  string

	mu      sync.Mutex
	sent    []faults.Sent
	effects []faults.Effect
	changed chan struct{}
}

// newSmall opens a client with its own prefix on the shared broker.
func newSmall(t *testing.T) *small {
	t.Helper()
	skipIfAsked(t)
	s := &small{
		t: t, broker: broker.Shared(t, broker.Options{Version: *version, Advanced: advanced()}),
		prefix: fmt.Sprintf("fx%d", time.Now().UnixNano()), changed: make(chan struct{}, 1),
	}
	s.queue = s.prefix + ".orders"
	strategy, err := dlx.NewBucket(dlx.BucketConfig{Prefix: s.prefix, Radices: []int{10, 10}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), servers.Patience)
	defer cancel()
	s.client, err = amqpx.Open(ctx, amqpx.Config{URL: s.broker.URL(), Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.client.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// send sends n messages concurrently. They are due after the delay.
func (s *small) send(n int, delay time.Duration) {
	s.t.Helper()
	began := time.Now()
	due := began.Add(delay).Truncate(time.Millisecond)
	msgs := make([]amqpx.Message, n)
	for i := range msgs {
		msgs[i] = amqpx.Message{ID: fmt.Sprint(len(s.sent) + i), Queue: s.queue, DeliverAt: due}
	}
	if err := s.client.SendBatch(s.t.Context(), msgs); err != nil {
		s.t.Fatal(err)
	}
	ended := time.Now()
	for _, m := range msgs {
		s.sent = append(s.sent, faults.Sent{ID: m.ID, Began: began, Due: due, Ended: ended})
	}
}

// consume records effects until the test ends.
func (s *small) consume() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.client.Consume(ctx, s.queue, func(_ context.Context, d *amqpx.Delivery) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.effects = append(s.effects, faults.Effect{ID: d.ID, At: time.Now()})
			select {
			case s.changed <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

// await waits for n effects and returns the verdict.
func (s *small) await(n int) faults.Verdict {
	s.t.Helper()
	deadline := time.After(servers.Patience)
	for {
		s.mu.Lock()
		effects := slices.Clip(s.effects)
		s.mu.Unlock()
		if len(effects) >= n {
			return faults.Check(s.sent, effects, nil)
		}
		select {
		case <-s.changed:
		case <-deadline:
			s.t.Fatalf("got %d effects within %v, want %d", len(effects), servers.Patience, n)
		}
	}
}

func (s *small) channel() *amqp.Channel {
	s.t.Helper()
	conn, err := amqp.Dial(s.broker.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		s.t.Fatal(err)
	}
	return ch
}

func (s *small) awaitDepth(ch *amqp.Channel, queue string, want int) {
	s.t.Helper()
	deadline := time.After(servers.Patience)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if q.Messages == want {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			s.t.Fatalf("after a minute, there are %d messages in %s, want %d", q.Messages, queue, want)
		}
	}
}

// If the destination is deleted while messages wait for it, all of them are parked. They arrive after the queue exists
// again and an operator has published them to the delivery exchange with their routing keys.
func TestDestinationDeletedAndCreatedAgain(t *testing.T) {
	s := newSmall(t)
	const n = 300
	ch := s.channel()
	s.send(n, 4*time.Second)
	came, err := ch.QueueDelete(s.queue, false, false, false)
	if err != nil {
		t.Fatal(err)
	}
	if came > 0 {
		t.Skipf("skipped: the machine is too slow: %d messages were due before their queue was deleted", came)
	}
	parked := topology.ParkedQueue(s.prefix)
	s.awaitDepth(ch, parked, n)
	if v := faults.Check(s.sent, nil, nil); v.Lost != n {
		t.Fatalf("without effects, %d messages count as lost, want %d", v.Lost, n)
	}

	// The next consumer declares and binds the queue.
	s.consume()
	s.sendBack(ch, n)
	if v := s.await(n); !v.Clean() {
		t.Errorf("got %v, want a verdict without violations", v)
	}
	s.awaitDepth(ch, parked, 0)
}

// sendBack publishes the parked messages to the delivery exchange until there are n effects. It has to repeat this,
// because messages are parked again until their queue is bound.
func (s *small) sendBack(ch *amqp.Channel, n int) {
	s.t.Helper()
	if err := ch.Confirm(false); err != nil {
		s.t.Fatal(err)
	}
	deadline := time.After(servers.Patience)
	for {
		d, ok, err := ch.Get(topology.ParkedQueue(s.prefix), false)
		if err != nil {
			s.t.Fatal(err)
		}
		if !ok {
			s.mu.Lock()
			got := len(s.effects)
			s.mu.Unlock()
			if got >= n {
				return
			}
			select {
			case <-s.changed:
			case <-time.After(50 * time.Millisecond):
			case <-deadline:
				s.t.Fatalf("%d parked messages arrived within a minute, want %d", got, n)
			}
			continue
		}
		delete(d.Headers, "x-death") // before 4.0.1, a broker would drop the message because of this header
		confirm, err := ch.PublishWithDeferredConfirm(topology.DeliveryExchange(s.prefix), d.RoutingKey, false, false, amqp.Publishing{
			MessageId: d.MessageId, Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent,
		})
		if err != nil {
			s.t.Fatal(err)
		}
		if acked, err := confirm.WaitContext(s.t.Context()); !acked || err != nil {
			s.t.Fatalf("message %s: got no confirm (error %v), want one", d.MessageId, err)
		}
		if err := d.Ack(false); err != nil {
			s.t.Fatal(err)
		}
	}
}

// A policy with a message-ttl on the delay queues makes the broker deliver early, because it
// uses the smaller of the policy's TTL and the queue's own. The consumer sends such messages
// back until they are due.
func TestPolicyWithATTL(t *testing.T) {
	s := newSmall(t)
	s.consume()
	s.send(1, 0) // declares the layout and the queue
	s.await(1)
	name := s.prefix + "-ttl"
	_, err := s.broker.Ctl(t.Context(), "set_policy", name, "^"+s.prefix+`\.bucket`, `{"message-ttl":100}`, "--apply-to", "queues")
	if errors.Is(err, broker.ErrNotOurs) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.broker.Ctl(context.Background(), "clear_policy", name); err != nil {
			t.Error(err)
		}
	})
	const n = 50
	s.send(n, 8*time.Second)
	v := s.await(n + 1)
	if !v.Clean() {
		t.Errorf("got %v, want a verdict without violations", v)
	}
	var returned uint64
	for _, k := range s.client.Stats().Consumers {
		returned += k.Returned
	}
	if returned == 0 {
		t.Error("0 messages arrived too early, want at least 1 because of the policy")
	}
}

// Two layouts are used at the same time: producers with both layouts send to the same destination, while a consumer
// retries with the old layout.
func TestTwoLayoutsAtOnce(t *testing.T) {
	skipIfAsked(t)
	promised(t, run(t, faults.Config{
		Name: "two layouts", Brokers: shared(t),
		Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
		Second:   &faults.Strategy{Name: "bucket", QueueType: topology.Quorum, Layout: dlx.LayoutHex},
		Kinds:    faults.Kinds("network", "consumer"), Seed: *seed, Duration: brief(), Rate: *rate,
	}))
}

func shared(t *testing.T) faults.Brokers {
	t.Helper()
	return faults.OneNode(broker.Shared(t, broker.Options{Version: *version, Advanced: advanced()}))
}

// brief returns a duration that is long enough for a few faults.
func brief() time.Duration { return min(*duration, 12*time.Second) }
