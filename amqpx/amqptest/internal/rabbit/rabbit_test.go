package rabbit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// world contains a broker, its clock, and the messages that its consumers have received.
type world struct {
	*Broker
	v   *VHost
	ch  *Channel
	at  time.Time
	got []arrival
}

type arrival struct {
	queue string
	at    time.Time
	Delivery
}

var epoch = time.Unix(1_000_000_000, 0)

func newWorld(version string) *world {
	v, err := ParseVersion(version)
	if err != nil {
		panic(err)
	}
	w := &world{Broker: New(Options{Version: v}, epoch), at: epoch}
	w.v = w.VHost("/")
	w.ch = w.NewChannel(w, w)
	return w
}

func (w *world) Deliver(queue string, d Delivery) { w.got = append(w.got, arrival{queue, w.at, d}) }
func (w *world) Cancelled(string)                 {}

// fataler is the part of *testing.T and *rapid.T that stops a failed test.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func (w *world) queue(t fataler, name, kind string, args amqp.Table) *Queue {
	t.Helper()
	all := amqp.Table{"x-queue-type": kind}
	maps.Copy(all, args)
	q, err := w.v.DeclareQueue(QueueSpec{Name: name, Durable: true, Args: all}, nil)
	if err != nil {
		t.Fatalf("declare queue %s: got %v, want nil", name, err)
	}
	return q
}

func (w *world) consume(t fataler, q *Queue) {
	t.Helper()
	if err := w.ch.Consume(q, Consumer{Tag: q.Name, NoAck: true}, nil, func(string) {}); err != nil {
		t.Fatalf("consume from %s: got %v, want nil", q.Name, err)
	}
}

func (w *world) publish(t fataler, queue string, p amqp.Publishing) Outcome {
	t.Helper()
	m, queues, err := w.v.Prepare("", queue, p)
	if err != nil {
		t.Fatalf("publish to queue %s: got %v, want nil", queue, err)
	}
	return w.v.Publish(m, queues)
}

// pass advances the clock by d, stopping at each event of the broker.
func (w *world) pass(d time.Duration) {
	end := w.at.Add(d)
	for {
		next, ok := w.Next()
		if !ok || next.After(end) {
			break
		}
		w.at = next
		w.Advance(next)
	}
	w.at = end
	w.Advance(end)
}

var (
	kinds    = []string{"classic", "quorum"}
	versions = []string{"3.10.8", "3.13.0", "4.0.5", "4.3.0", "4.4.0"}
)

// A queue with a message TTL dead-letters each message once, after exactly that time and in order of arrival. The
// message then has one x-death record with a count of 1.
func TestQueueDelaysByItsTTL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom(versions).Draw(t, "version"))
		kind := rapid.SampledFrom(kinds).Draw(t, "type")
		ttl := rapid.Int64Range(0, 400*24*3600*1000).Draw(t, "ttl")
		dest := w.queue(t, "dest", kind, nil)
		args := amqp.Table{"x-message-ttl": ttl, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dest"}
		if rapid.Bool().Draw(t, "at least once") {
			args["x-overflow"] = "reject-publish"
			if kind == "quorum" {
				args["x-dead-letter-strategy"] = "at-least-once"
			}
		}
		hold := w.queue(t, "hold", kind, args)
		w.consume(t, dest)
		gaps := rapid.SliceOfN(rapid.IntRange(0, 5000), 1, 20).Draw(t, "gaps")
		due := make([]time.Time, len(gaps))
		for i, gap := range gaps {
			w.pass(time.Duration(gap) * time.Millisecond)
			due[i] = w.at.Add(time.Duration(ttl) * time.Millisecond)
			w.publish(t, "hold", amqp.Publishing{MessageId: strconv.Itoa(i)})
		}
		w.pass(time.Duration(ttl) * time.Millisecond)
		if len(w.got) != len(gaps) || hold.Ready() != 0 {
			t.Fatalf("after the TTL of all messages: got %d messages delivered and %d left, want %d and 0", len(w.got), hold.Ready(), len(gaps))
		}
		for i, a := range w.got {
			if a.Message.MessageId != strconv.Itoa(i) || !a.at.Equal(due[i]) {
				t.Fatalf("delivery %d: got ID %s, %v after it was due, want ID %d and 0s", i, a.Message.MessageId, a.at.Sub(due[i]), i)
			}
			deaths, _ := a.Message.Delivered(w.Version())["x-death"].([]any)
			if d, _ := deaths[0].(amqp.Table); len(deaths) != 1 || d["queue"] != "hold" || d["reason"] != reasonExpired || d["count"] != int64(1) {
				t.Fatalf(`the delivery has x-death %v, want one record with queue = "hold", reason = %v and count = %v`,
					deaths, reasonExpired, int64(1))
			}
		}
	})
}

// A message expires only at the head of its queue: it waits until the messages in front of it have expired, and it
// never expires early.
func TestExpirationWaitsForTheHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom(versions).Draw(t, "version"))
		kind := rapid.SampledFrom(kinds).Draw(t, "type")
		dest := w.queue(t, "dest", kind, nil)
		w.queue(t, "hold", kind, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dest"})
		w.consume(t, dest)
		ttls := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 20).Draw(t, "ttls")
		for i, ttl := range ttls {
			w.publish(t, "hold", amqp.Publishing{MessageId: strconv.Itoa(i), Expiration: strconv.Itoa(ttl)})
		}
		w.pass(time.Second)
		latest := 0
		for i, ttl := range ttls {
			latest = max(latest, ttl)
			if a := w.got[i]; a.Message.MessageId != strconv.Itoa(i) || a.at.Sub(epoch) != time.Duration(latest)*time.Millisecond {
				t.Fatalf("delivery %d: got message %s after %v, want message %d after %d ms", i, a.Message.MessageId, a.at.Sub(epoch), i, latest)
			}
		}
	})
}

// A queue with the at-least-once strategy keeps dead letters that cannot be routed, and delivers them when there is a
// route. With at-most-once, it drops them. Each case has more than the 32 dead letters that can be in transit.
func TestDeadLettersWithoutARoute(t *testing.T) {
	for _, strategy := range []string{"at-least-once", "at-most-once"} {
		w := newWorld("4.3.0")
		q := w.queue(t, "hold", "quorum", amqp.Table{
			"x-message-ttl": int64(10), "x-dead-letter-exchange": "later", "x-dead-letter-strategy": strategy, "x-overflow": "reject-publish",
		})
		for range 40 {
			w.publish(t, "hold", amqp.Publishing{})
		}
		w.pass(time.Hour)
		if want := map[string]int{"at-least-once": 40}[strategy]; q.Dying() != want || q.Ready() != 0 {
			t.Errorf("strategy %s: got %d dead letters and %d ready messages, want %d and 0", strategy, q.Dying(), q.Ready(), want)
		}
		if err := w.v.DeclareExchange(ExchangeSpec{Name: "later", Kind: "fanout"}); err != nil {
			t.Fatalf("%s: declare exchange: got %v, want nil", strategy, err)
		}
		dest := w.queue(t, "dest", "quorum", nil)
		if _, err := w.v.Bind(Binding{Source: "later", Queue: "dest"}, nil); err != nil {
			t.Fatalf("%s: bind queue: got %v, want nil", strategy, err)
		}
		w.pass(deadLetterRetry * time.Millisecond)
		if want := map[string]int{"at-least-once": 40}[strategy]; dest.Ready() != want {
			t.Errorf("strategy %s: got %d messages in dest, want %d", strategy, dest.Ready(), want)
		}
	}
}

// Without reject-publish, the broker silently uses at-most-once instead of at-least-once.
func TestAtLeastOnceNeedsRejectPublish(t *testing.T) {
	w := newWorld("4.3.0")
	q := w.queue(t, "hold", "quorum", amqp.Table{"x-message-ttl": int64(10), "x-dead-letter-exchange": "none", "x-dead-letter-strategy": "at-least-once"})
	w.publish(t, "hold", amqp.Publishing{})
	w.pass(time.Second)
	if q.Dying() != 0 || q.Ready() != 0 {
		t.Errorf("queue with at-least-once dead-lettering but without reject-publish: got %d dead letters and %d ready messages, want 0 and 0", q.Dying(), q.Ready())
	}
}

// Brokers before 4.0.1 trust an x-death header from a client. In this test, they therefore detect a cycle and drop the
// message.
func TestOldDeathsOfAClient(t *testing.T) {
	for version, arrives := range map[string]bool{"3.10.8": false, "4.0.0": false, "4.0.1": true, "4.3.0": true} {
		w := newWorld(version)
		dest := w.queue(t, "dest", "quorum", nil)
		w.queue(t, "hold", "quorum", amqp.Table{"x-message-ttl": int64(10), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dest"})
		w.publish(t, "hold", amqp.Publishing{Headers: amqp.Table{"x-death": []any{
			amqp.Table{"queue": "dest", "reason": reasonExpired, "count": int64(1)},
		}}})
		w.pass(time.Second)
		if got := dest.Ready() == 1; got != arrives {
			t.Errorf("RabbitMQ %s: the message arrived: %t, want %t", version, got, arrives)
		}
	}
}

// On 4.0, a waiting message with a higher priority blocks due messages, because it is ahead of them in the queue. On
// 3.10 and 4.3 it does not.
func TestHighPriorityBlocks(t *testing.T) {
	for version, want := range map[string]int{"3.10.8": 1, "4.0.5": 0, "4.3.0": 1} {
		w := newWorld(version)
		dest := w.queue(t, "dest", "quorum", nil)
		w.queue(t, "hold", "quorum", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dest"})
		w.publish(t, "hold", amqp.Publishing{Expiration: "100"})
		w.publish(t, "hold", amqp.Publishing{Expiration: "60000", Priority: 5})
		w.pass(time.Second)
		if dest.Ready() != want {
			t.Errorf("RabbitMQ %s: got %d messages in dest, want %d", version, dest.Ready(), want)
		}
	}
}

// On 4.0, a message is dropped when it is requeued for the 21st time, unless the limit is -1. 4.3 does not count
// messages that a client requeues, and 3.10 has no default limit.
func TestDeliveryLimits(t *testing.T) {
	for _, c := range []struct {
		version string
		args    amqp.Table
		left    int
	}{
		{"3.10.8", nil, 1},
		{"4.0.5", nil, 0},
		{"4.0.5", amqp.Table{"x-delivery-limit": int64(-1)}, 1},
		{"4.3.0", nil, 1},
	} {
		w := newWorld(c.version)
		q := w.queue(t, "q", "quorum", c.args)
		w.publish(t, "q", amqp.Publishing{})
		for i := range 21 {
			d, ok, err := w.ch.Get(q, false)
			if err != nil || !ok {
				t.Fatalf("RabbitMQ %s: basic.get %d: got %t, %v, want a message", c.version, i, ok, err)
			}
			if err := w.ch.Nack(d.Tag, false, true); err != nil {
				t.Fatal(err)
			}
		}
		if q.Ready() != c.left {
			t.Errorf("RabbitMQ %s, arguments %v: got %d messages left, want %d", c.version, c.args, q.Ready(), c.left)
		}
	}
}

// Whatever consumers do, no message is lost or duplicated: every published message is either ready, unacknowledged or
// acknowledged.
func TestConsumersConserve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom(versions).Draw(t, "version"))
		q := w.queue(t, "q", rapid.SampledFrom(kinds).Draw(t, "type"), nil)
		if q.Quorum() {
			q.limit = 1_000_000_000
		}
		published, acked := 0, 0
		w.ch.prefetch = rapid.IntRange(0, 3).Draw(t, "prefetch")
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"publish", "consume", "cancel", "get", "ack", "all", "nack", "recover", "close"}).Draw(t, "act") {
			case "publish":
				w.publish(t, "q", amqp.Publishing{MessageId: strconv.Itoa(published)})
				published++
			case "consume":
				_ = w.ch.Consume(q, Consumer{Tag: fmt.Sprint(i)}, nil, func(string) {})
			case "cancel":
				for tag := range w.ch.consumers {
					w.ch.Cancel(tag)
				}
			case "get":
				_, _, _ = w.ch.Get(q, false)
			case "ack":
				if len(w.ch.unacked) > 0 {
					acked++
					_ = w.ch.Ack(w.ch.unacked[0].tag, false)
				}
			case "all":
				acked += len(w.ch.unacked)
				_ = w.ch.Ack(0, true)
			case "nack":
				if n := len(w.ch.unacked); n > 0 {
					_ = w.ch.Reject(w.ch.unacked[n-1].tag, true)
				}
			case "recover":
				w.ch.Recover()
			case "close":
				w.ch.Close()
			}
			ids := map[string]bool{}
			for _, m := range q.Messages() {
				ids[m.MessageId] = true
			}
			for _, h := range w.ch.unacked {
				ids[h.message.MessageId] = true
			}
			if len(ids) != published-acked || q.Ready()+q.Unacked() != len(ids) || len(q.Messages()) != q.Ready() {
				t.Fatalf("queue after random operations: got %d ready and %d unacknowledged messages with %d different IDs, want %d, as %d were published and %d acknowledged",
					q.Ready(), q.Unacked(), len(ids), published-acked, published, acked)
			}
		}
	})
}

// The plugin delays messages in its exchange and negates their x-delay header. RabbitMQ 4.4 delays them in the queue
// itself.
func TestDelays(t *testing.T) {
	w := newWorld("4.4.0")
	w.opts.Plugin = true
	q := w.queue(t, "q", "quorum", nil)
	w.consume(t, q)
	if err := w.v.DeclareExchange(ExchangeSpec{Name: "x", Kind: delayedKind, Args: amqp.Table{"x-delayed-type": "direct"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.v.Bind(Binding{Source: "x", Queue: "q", Key: "q"}, nil); err != nil {
		t.Fatal(err)
	}
	m, queues, err := w.v.Prepare("x", "q", amqp.Publishing{Headers: amqp.Table{"x-delay": int64(1500)}})
	if err != nil {
		t.Fatal(err)
	}
	if out := w.v.Publish(m, queues); out.Routed {
		t.Error("publish to the plugin's exchange: got Routed = true, want false, because the plugin reports delayed messages as unrouted")
	}
	w.publish(t, "q", amqp.Publishing{Headers: amqp.Table{"x-opt-delivery-time": epoch.Add(2 * time.Second).UnixMilli()}})
	w.publish(t, "q", amqp.Publishing{Headers: amqp.Table{"x-opt-delivery-time": "soon"}})
	w.pass(time.Minute)
	var after []time.Duration
	for _, a := range w.got {
		after = append(after, a.at.Sub(epoch))
	}
	if !slices.Equal(after, []time.Duration{0, 1500 * time.Millisecond, 2 * time.Second}) || w.got[1].Message.Headers["x-delay"] != int64(-1500) {
		t.Errorf(`got the deliveries %+v after %v, want them after [0 1500ms 2s], the second one with x-delay = -1500`, w.got, after)
	}
}

// A message that is delayed in a 4.4 queue counts towards the queue's length. A purge deletes it. Even if its TTL is
// shorter than its delay, it does not expire before its delivery time.
func TestNativeDelays(t *testing.T) {
	w := newWorld("4.4.0")
	dead := w.queue(t, "dead", "quorum", nil)
	q := w.queue(t, "q", "quorum", amqp.Table{
		"x-max-length": int64(2), "x-overflow": "reject-publish", "x-message-ttl": int64(1000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
	})
	later := amqp.Publishing{Headers: amqp.Table{"x-opt-delivery-time": epoch.Add(time.Minute).UnixMilli()}}
	for i := range 3 {
		if out := w.publish(t, "q", later); out.Rejected != (i == 2) {
			t.Errorf("message %d: got %+v, want Rejected = %t", i, out, i == 2)
		}
	}
	if q.Ready() != 0 || q.Delayed() != 2 {
		t.Errorf("before Purge: got %d ready and %d delayed messages, want 0 and 2", q.Ready(), q.Delayed())
	}
	if n := q.Purge(); n != 0 || q.Delayed() != 0 {
		t.Errorf("Purge: got %d ready messages deleted and %d delayed messages left, want 0 and 0", n, q.Delayed())
	}
	w.publish(t, "q", later)
	w.pass(59 * time.Second)
	if dead.Ready() != 0 {
		t.Errorf("before the delivery time: got %d expired messages, want 0", dead.Ready())
	}
	w.pass(time.Second)
	if dead.Ready() != 1 {
		t.Errorf("at the delivery time: got %d expired messages, want 1", dead.Ready())
	}
}

// With Mnesia, the broker confirms to a second client that a binding exists before the binding routes messages.
func TestLateBindings(t *testing.T) {
	w := newWorld("4.0.5")
	w.opts.LateBindings = 20 * time.Millisecond
	w.queue(t, "q", "classic", nil)
	b := Binding{Source: "amq.topic", Queue: "q", Key: "k"}
	first, _ := w.v.Bind(b, nil)
	second, _ := w.v.Bind(b, nil)
	if first != second+20 {
		t.Errorf("Bind was answered at %d and %d, want the first answer 20 ms later than the second", first, second)
	}
	if qs := w.v.route("amq.topic", []string{"k"}, nil); len(qs) != 0 {
		t.Errorf("before the delay: got routes to %d queues, want 0", len(qs))
	}
	w.pass(20 * time.Millisecond)
	if qs := w.v.route("amq.topic", []string{"k"}, nil); len(qs) != 1 {
		t.Errorf("after the delay: got routes to %d queues, want 1", len(qs))
	}
}
