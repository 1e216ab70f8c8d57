package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// world is a broker in memory with a client, a plain channel, and the client's log.
type world struct {
	*testing.T
	srv    *amqptest.Server
	client *amqpx.Client
	ch     *amqp.Channel
	logs   *logs.ObservedLogs
	sent   *sends
}

// sends counts what a client sends, retries and dead letters included.
type sends struct {
	mu sync.Mutex
	n  int
}

func (s *sends) SendStart(ctx context.Context, _ *amqpx.Message) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return ctx
}
func (s *sends) SendEnd(context.Context, amqpx.SendEnd) {}
func (s *sends) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// inMemory runs f in a bubble in which time passes at once.
func inMemory(t *testing.T, opts amqptest.Options, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(opts)
		defer srv.Close()
		core, seen := logs.New(zap.InfoLevel)
		w := &world{T: t, srv: srv, logs: seen, sent: &sends{}}
		var err error
		w.client, err = amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Logger: zap.New(core), Hooks: []amqpx.Hook{w.sent}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.client.Close() }()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if w.ch, err = conn.Channel(); err != nil {
			t.Fatal(err)
		}
		f(t, w)
	})
}

func (w *world) send(m amqpx.Message) {
	w.Helper()
	if err := w.client.Send(w.Context(), m); err != nil {
		w.Fatal(err)
	}
}

// publish is what a foreign publisher does.
func (w *world) publish(exchange, key string, p amqp.Publishing) {
	w.Helper()
	if err := w.ch.PublishWithContext(w.Context(), exchange, key, false, false, p); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// consume runs a consumer until stop, which gives what Consume returned.
func (w *world) consume(queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func() error) {
	ctx, cancel := context.WithCancel(w.Context())
	result := make(chan error, 1)
	go func() { result <- w.client.Consume(ctx, queue, h, opts...) }()
	synctest.Wait()
	return func() error { cancel(); return <-result }
}

func (w *world) queue(name string) amqptest.QueueState {
	w.Helper()
	q, ok := w.srv.Queue(name)
	if !ok {
		w.Fatalf("there is no queue %s", name)
	}
	return q
}

// ids are the ids of the messages that are ready in a queue.
func (w *world) ids(queue string) (ids []string) {
	for _, m := range w.queue(queue).Messages {
		ids = append(ids, m.MessageId)
	}
	return ids
}

// ready counts the messages in the queues whose names begin with prefix.
func (w *world) ready(prefix string) (n int) {
	for _, q := range w.srv.Queues() {
		if strings.HasPrefix(q, prefix) {
			n += w.queue(q).Ready
		}
	}
	return n
}

// refuseDelays has no delay queue take a message.
func refuseDelays(w *world) (undo func()) {
	var all []func()
	for _, e := range w.srv.Exchanges() {
		if strings.HasPrefix(e.Name, "delay.bucket") {
			all = append(all, w.srv.Nack(e.Name))
		}
	}
	return func() {
		for _, undo := range all {
			undo()
		}
	}
}

func nothing(context.Context, *amqpx.Delivery) error { return nil }

func rejecting(_ context.Context, d *amqpx.Delivery) error {
	if strings.HasPrefix(d.ID, "bad") {
		return amqpx.Reject(errors.New("no"))
	}
	return nil
}

// A dead-letter queue that was deleted is declared again, and the messages arrive.
func TestDeletedDeadLetterQueueComesBack(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		stop := w.consume("q", rejecting)
		w.send(amqpx.Message{ID: "good", Queue: "q"}) // later ones do not look after the queue again
		if _, err := w.ch.QueueDelete("q.dead", false, false, false); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			w.send(amqpx.Message{ID: fmt.Sprint("bad", i), Queue: "q"})
		}
		<-time.After(time.Minute)
		if got := w.ids("q.dead"); len(got) != 20 {
			t.Errorf("dead letters %v, want 20", got)
		}
		if n := w.srv.Publishes(""); n > 100 {
			t.Errorf("%d publishes for 20 dead letters", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A dead-letter queue that cannot be had, and a delay queue that takes nothing,
// hold up the messages that need them and no handler; the broker is asked ever
// more rarely, and the log says it once a minute.
func TestNoPlaceForAFailedMessage(t *testing.T) {
	for name, trouble := range map[string]struct {
		begin func(w *world) (undo func())
		fail  func(error) error
		ends  string
	}{
		"dead letter": {func(w *world) func() {
			_, _ = w.ch.QueueDelete("q.dead", false, false, false)
			return w.srv.Deny("", amqptest.Configure, `^q\.dead$`)
		}, amqpx.Reject, "q.dead"},
		"retry": {refuseDelays, func(err error) error { return amqpx.RetryIn(time.Hour, err) }, "delay.bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var handled []string
				stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
					if d.ID == "bad" {
						return trouble.fail(errors.New("no"))
					}
					mu.Lock()
					defer mu.Unlock()
					handled = append(handled, d.ID)
					return nil
				}, amqpx.Concurrency(1))
				w.send(amqpx.Message{ID: "first", Queue: "q"})
				undo := trouble.begin(w)
				w.send(amqpx.Message{ID: "bad", Queue: "q"})
				w.send(amqpx.Message{ID: "good", Queue: "q"})
				<-time.After(time.Second)
				mu.Lock()
				if !slices.Equal(handled, []string{"first", "good"}) {
					t.Errorf("handled %v beside the message that is stuck", handled)
				}
				mu.Unlock()
				before := w.sent.count()
				<-time.After(time.Hour)
				if n := w.sent.count() - before; n > 1000 {
					t.Errorf("%d sends of one message in an hour", n)
				}
				if n := w.logs.FilterLevelExact(zap.WarnLevel).Len(); n > 70 {
					t.Errorf("%d warnings in an hour", n)
				}
				undo()
				<-time.After(time.Minute)
				if n := w.ready(trouble.ends); n != 1 {
					t.Errorf("%d messages arrived in %s", n, trouble.ends)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A queue to which no retry could be sent is refused before anything is consumed.
func TestConsumeRefusesQueuesWithoutAWayBack(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		for queue, hint := range map[string]string{
			"delay.parked":           "docs/guarantees.md",
			"delay.bucket.1s":        "belongs to the delay strategies",
			"delay.route.events:a":   "belongs to the delay strategies",
			strings.Repeat("n", 250): "bytes",
			strings.Repeat("n", 235): "bytes",
		} {
			err := w.client.Consume(t.Context(), queue, nothing)
			if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), hint) {
				t.Errorf("%.20s: %v", queue, err)
			}
		}
		if err := w.client.Consume(t.Context(), "q", nothing, amqpx.DeadLetterQueue("delay.bucket.1s")); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("a dead-letter queue that delays: %v", err)
		}
		if _, ok := w.srv.Queue("q"); ok || len(w.srv.Connections()) != 2 {
			t.Error("something was begun")
		}
		stop := w.consume(strings.Repeat("n", 220), nothing)
		if err := stop(); err != nil {
			t.Errorf("a long name: %v", err)
		}
	})
}

// A start that is abandoned leaves no consumer behind that holds messages.
func TestAbandonedStart(t *testing.T) {
	for _, method := range []string{"queue.declare", "channel.open", "basic.qos", "basic.consume"} {
		t.Run(method, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				w.send(amqpx.Message{ID: "m", Queue: "q"})
				w.srv.Control(func(f amqptest.Frame) (a amqptest.Action) {
					if f.Method == method && f.FromClient && !strings.Contains(f.Connection, "publish") {
						a.Delay = time.Second
					}
					return a
				})
				stop := w.consume("q", nothing)
				<-time.After(500 * time.Millisecond)
				began := time.Now()
				if err := stop(); err != nil || time.Since(began) > 0 {
					t.Errorf("got %v after %v", err, time.Since(began))
				}
				<-time.After(time.Minute)
				if q := w.queue("q"); q.Consumers != 0 || q.Ready != 1 {
					t.Errorf("%d consumers, %d messages ready, want none and 1", q.Consumers, q.Ready)
				}
			})
		})
	}
}

// What the broker has taken away from a handler is not published again by it: the
// broker delivers it again, and each delivery would become a chain of retries.
func TestNoRetryOfALostDelivery(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		t.Run(version, func(t *testing.T) {
			inMemory(t, amqptest.Options{Version: version, ConsumerTimeout: time.Minute}, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var attempts []int
				stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
					mu.Lock()
					attempts = append(attempts, d.Attempt)
					n := len(attempts)
					mu.Unlock()
					if n == 1 {
						<-time.After(10 * time.Minute)
						return errors.New("too late")
					}
					return nil
				})
				w.send(amqpx.Message{ID: "m", Queue: "q"})
				<-time.After(time.Hour)
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(attempts, []int{1, 1}) || w.sent.count() != 1 {
					t.Errorf("attempts %v, %d sends; want the first attempt twice and no retry", attempts, w.sent.count())
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The same while a retry is being tried: one chain goes on, that of the redelivery.
func TestRetryEndsWithItsDelivery(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var attempts []int
		stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			attempts = append(attempts, d.Attempt)
			if d.Attempt == 1 {
				return amqpx.RetryIn(time.Hour, errors.New("no"))
			}
			return nil
		})
		undo := refuseDelays(w)
		w.send(amqpx.Message{ID: "m", Queue: "q"})
		<-time.After(25 * time.Second)
		w.srv.CutConnections()
		<-time.After(5 * time.Second)
		undo()
		<-time.After(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(attempts, []int{1, 1, 2}) {
			t.Errorf("attempts %v, want 1 twice and one retry", attempts)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// On the drain, what was handed out and not begun goes back at once.
func TestDrainHandsBackWhatIsNotBegun(t *testing.T) {
	for _, version := range []string{"4.0.5", "4.3.0"} {
		t.Run(version, func(t *testing.T) {
			inMemory(t, amqptest.Options{Version: version}, func(t *testing.T, w *world) {
				finish := make(chan struct{})
				stop := w.consume("q", func(context.Context, *amqpx.Delivery) error { <-finish; return nil }, amqpx.Concurrency(6), amqpx.Prefetch(38), amqpx.DrainTimeout(time.Hour))
				for i := range 40 {
					w.send(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
				}
				synctest.Wait()
				if q := w.queue("q"); q.Ready != 2 || q.Unacked != 38 {
					t.Fatalf("%d ready, %d handed out", q.Ready, q.Unacked)
				}
				result := make(chan error, 1)
				go func() { result <- stop() }()
				synctest.Wait()
				if q := w.queue("q"); q.Ready != 34 || q.Unacked != 6 || q.Consumers != 0 {
					t.Errorf("%d ready, %d held by %d consumers; want 34 ready and 6 held by handlers", q.Ready, q.Unacked, q.Consumers)
				}
				<-time.After(10 * time.Minute)
				close(finish)
				if err := <-result; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if q := w.queue("q"); q.Ready != 34 || q.Unacked != 0 {
					t.Errorf("%d ready, %d handed out; want 34 and none", q.Ready, q.Unacked)
				}
			})
		})
	}
}

// A handler sees the same exchange and key on every attempt, and the dead letter
// tells them.
func TestEveryAttemptHasTheSameKey(t *testing.T) {
	for name, tc := range map[string]struct {
		send          func(w *world)
		exchange, key string
		destination   string // on the dead letter
	}{
		"queue":         {func(w *world) { w.send(amqpx.Message{Queue: "q", Delay: time.Minute}) }, "", "q", "q"},
		"queue at once": {func(w *world) { w.send(amqpx.Message{Queue: "q"}) }, "", "q", "q"},
		"exchange": {func(w *world) {
			w.send(amqpx.Message{Exchange: "events", RoutingKey: "user.created", Delay: time.Minute})
		}, "events", "user.created", "events:user.created"},
		"exchange with a colon": {func(w *world) {
			w.send(amqpx.Message{Exchange: "urn:events", RoutingKey: "user:created", Delay: time.Minute})
		}, "urn:events", "user:created", "urn:events:user:created"},
		"foreign":               {func(w *world) { w.publish("events", "user.deleted", amqp.Publishing{}) }, "events", "user.deleted", "events:user.deleted"},
		"foreign without a key": {func(w *world) { w.publish("fan", "", amqp.Publishing{}) }, "fan", "", "fan:"},
		"foreign to the queue":  {func(w *world) { w.publish("", "q", amqp.Publishing{}) }, "", "q", "q"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				type seen struct {
					exchange, key string
					attempt       int
				}
				var mu sync.Mutex
				var got []seen
				stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, seen{d.Exchange, d.RoutingKey, d.Attempt})
					return errors.New("no")
				}, amqpx.Retry(topology.Retry{MaxAttempts: 3}))
				for exchange, kind := range map[string]string{"events": "topic", "urn:events": "topic", "fan": "fanout"} {
					if err := w.ch.ExchangeDeclare(exchange, kind, true, false, false, false, nil); err != nil {
						t.Fatal(err)
					}
					if err := w.ch.QueueBind("q", "#", exchange, false, nil); err != nil {
						t.Fatal(err)
					}
				}
				tc.send(w)
				<-time.After(time.Hour)
				all := func() []seen {
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(got)
				}
				want := []seen{{tc.exchange, tc.key, 1}, {tc.exchange, tc.key, 2}, {tc.exchange, tc.key, 3}}
				if !slices.Equal(all(), want) {
					t.Errorf("got %v, want %v", all(), want)
				}
				dead := w.queue("q.dead").Messages
				if len(dead) != 1 || dead[0].Headers[amqpx.HeaderDestination] != tc.destination {
					t.Fatalf("dead letters %v, want one to %s", dead, tc.destination)
				}
				// Whoever puts a dead letter back finds it as it was.
				w.publish("", "q", dead[0].Publishing)
				synctest.Wait()
				if last := all()[3]; last.exchange != tc.exchange || last.key != tc.key {
					t.Errorf("put back, it came as %v", last)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A producer whose clock is fast holds up neither itself nor anybody else.
func TestMessagesFromAFastClock(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		declare := w.consume("q", nothing)
		if err := declare(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		fast := began.Add(time.Hour).UnixMilli()
		for i := range 200 {
			w.publish("", "q", amqp.Publishing{MessageId: fmt.Sprint("fast", i), Headers: amqp.Table{amqpx.HeaderDue: fast}})
		}
		for _, ms := range []int64{15, 5, 10} {
			w.publish("", "q", amqp.Publishing{MessageId: fmt.Sprint(ms), Headers: amqp.Table{amqpx.HeaderDue: began.UnixMilli() + ms}})
		}
		w.publish("", "q", amqp.Publishing{MessageId: "on time", Headers: amqp.Table{amqpx.HeaderDue: began.UnixMilli()}})
		var mu sync.Mutex
		at := map[string]time.Duration{}
		var last time.Duration
		stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			last = time.Since(began)
			at[d.ID] = last
			return nil
		}, amqpx.Concurrency(4), amqpx.Prefetch(1000))
		<-time.After(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(at) != 204 || last > 20*time.Millisecond {
			t.Errorf("%d messages took %v, want 204 within 20ms", len(at), last)
		}
		for id, want := range map[string]time.Duration{"on time": 0, "5": 5 * time.Millisecond, "10": 10 * time.Millisecond, "15": 15 * time.Millisecond} {
			if at[id] != want {
				t.Errorf("%s was handled after %v, want %v", id, at[id], want)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A consumer that never ran ends when its connection is refused for good, and not
// when that passes.
func TestRefusedConnection(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		undo := w.srv.RefuseLogins()
		began := time.Now()
		err := w.client.Consume(t.Context(), "q", nothing)
		ae, ok := errors.AsType[*amqp.Error](err)
		if took := time.Since(began); !ok || ae.Code != amqp.AccessRefused || took < 2*time.Second || took > 10*time.Second {
			t.Errorf("got %v after %v; want a refusal after 2 to 10s", err, took)
		}
		undo()
	})
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		undo := w.srv.RefuseLogins()
		stop := w.consume("q", nothing)
		<-time.After(time.Second)
		undo()
		<-time.After(time.Minute)
		if q := w.queue("q"); q.Consumers != 1 {
			t.Errorf("%d consumers after a moment's refusal", q.Consumers)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A consumer that ran goes on trying, and says so once a minute.
func TestRefusedAgain(t *testing.T) {
	for name, refuse := range map[string]func(w *world) (undo func()){
		"connection": func(w *world) func() {
			undo := w.srv.RefuseLogins()
			w.srv.CutConnections()
			return undo
		},
		"queue": func(w *world) func() {
			undo := w.srv.Deny("", amqptest.Read, "^q$")
			_, _ = w.ch.QueueDelete("q", false, false, false)
			return undo
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				stop := w.consume("q", nothing)
				undo := refuse(w)
				before := w.logs.Len()
				<-time.After(time.Hour)
				if n := w.logs.Len() - before; n < 50 || n > 200 { // of two connections
					t.Errorf("%d log lines in an hour, want about one a minute", n)
				}
				undo()
				<-time.After(time.Minute)
				if q := w.queue("q"); q.Consumers != 1 {
					t.Errorf("%d consumers when the refusal was over", q.Consumers)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A handler that ends its goroutine (t.FailNow in somebody's test) takes nothing
// with it but its own attempt.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			if d.ID == "bad" {
				runtime.Goexit()
			}
			return nil
		}, amqpx.Concurrency(1), amqpx.Retry(topology.Retry{MaxAttempts: 2}))
		w.send(amqpx.Message{ID: "bad", Queue: "q"})
		w.send(amqpx.Message{ID: "good", Queue: "q"})
		<-time.After(time.Minute)
		dead := w.queue("q.dead").Messages
		if len(dead) != 1 || !strings.Contains(fmt.Sprint(dead[0].Headers[amqpx.HeaderError]), "FailNow") {
			t.Errorf("dead letters %v", dead)
		}
		if q := w.queue("q"); q.Ready+q.Unacked != 0 {
			t.Errorf("%d messages are left", q.Ready+q.Unacked)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The errors that decide a fate do so inside others, and with any delay.
func TestFatesInsideErrors(t *testing.T) {
	no := errors.New("no")
	for name, tc := range map[string]struct {
		err error
		in  string // where the message waits a second later
	}{
		"reject, joined":   {errors.Join(no, amqpx.Reject(no)), "q.dead"},
		"reject, wrapped":  {fmt.Errorf("x: %w", amqpx.Reject(no)), "q.dead"},
		"reject and retry": {errors.Join(amqpx.RetryIn(time.Hour, no), amqpx.Reject(no)), "q.dead"},
		"retry, joined":    {errors.Join(no, amqpx.RetryIn(time.Hour, no)), "delay.bucket.1h"},
		"retry for ever":   {amqpx.RetryIn(math.MaxInt64, no), "delay.bucket.352d"},
		"retry, negative":  {amqpx.RetryIn(-time.Hour, no), "q"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				stop := w.consume("q", func(ctx context.Context, d *amqpx.Delivery) error {
					if d.Attempt > 1 {
						<-ctx.Done()
					}
					return tc.err
				}, amqpx.DrainTimeout(0))
				w.send(amqpx.Message{Queue: "q"})
				<-time.After(time.Second)
				if q := w.queue(tc.in); q.Ready+q.Unacked != 1 {
					t.Errorf("%d messages in %s", q.Ready+q.Unacked, tc.in)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A message that ended its consumer 200 times is dead-lettered before its handler
// has it; one that was merely looked at is not.
func TestPoison(t *testing.T) {
	for looks, want := range map[int]string{100: "handled", 201: "q.dead"} {
		t.Run(want, func(t *testing.T) {
			inMemory(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, w *world) {
				w.send(amqpx.Message{ID: "m", Queue: "q"})
				for range looks {
					d, ok, err := w.ch.Get("q", false)
					if err != nil || !ok {
						t.Fatal(err, ok)
					}
					if err := d.Nack(false, true); err != nil {
						t.Fatal(err)
					}
				}
				handled := 0
				stop := w.consume("q", func(context.Context, *amqpx.Delivery) error { handled++; return nil })
				<-time.After(time.Second)
				if err := stop(); err != nil {
					t.Error(err)
				}
				dead := w.queue("q.dead").Messages
				if want == "handled" {
					if handled != 1 || len(dead) != 0 {
						t.Errorf("handled %d times, dead letters %v", handled, dead)
					}
					return
				}
				if handled != 0 || len(dead) != 1 || dead[0].Headers[amqpx.HeaderReason] != amqpx.ReasonDeliveries {
					t.Errorf("handled %d times, dead letters %v", handled, dead)
				}
			})
		})
	}
}

// Several consumers of one queue, few and many at once, share its messages.
func TestConsumersOfOneQueue(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		type key struct{}
		var mu sync.Mutex
		handled := map[string]int{}
		w.send(amqpx.Message{ID: "first", Queue: "q"})
		var stops []func() error
		for _, opts := range [][]amqpx.ConsumeOption{
			{amqpx.Concurrency(1), amqpx.Prefetch(1)},
			{amqpx.Concurrency(65535), amqpx.Prefetch(65535)},
			{amqpx.Concurrency(65535), amqpx.Prefetch(1)},
			{amqpx.Concurrency(1), amqpx.Prefetch(65535)},
		} {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "mine"))
			result := make(chan error, 1)
			go func() {
				result <- w.client.Consume(ctx, "q", func(ctx context.Context, d *amqpx.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					handled[d.ID]++
					if ctx.Value(key{}) != "mine" {
						t.Error("the context's value did not reach the handler")
					}
					return nil
				}, opts...)
			}()
			stops = append(stops, func() error { cancel(); return <-result })
		}
		for i := range 200 {
			w.send(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		<-time.After(time.Second)
		for _, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		if len(handled) != 201 {
			t.Errorf("%d messages were handled, want 201", len(handled))
		}
		for id, n := range handled {
			if n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
	})
}

// Close ends a consumer that is starting, one that waits for a connection, and
// one whose handler is deaf.
func TestCloseEndsConsumers(t *testing.T) {
	for name, begin := range map[string]func(w *world) (bound time.Duration){
		"starting":  func(w *world) time.Duration { w.srv.Delay("basic.consume", "q", time.Hour); return 5 * time.Second },
		"refused":   func(w *world) time.Duration { w.srv.RefuseConnections(); return 0 },
		"no answer": func(w *world) time.Duration { w.srv.Lose("queue.declare", "q"); return 5 * time.Second },
		"deaf":      func(w *world) time.Duration { return 40 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
				w.send(amqpx.Message{Queue: "q"})
				bound := begin(w)
				result := make(chan error, 1)
				done := make(chan struct{})
				go func() {
					result <- w.client.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error {
						<-done
						return errors.New("at last")
					})
				}()
				<-time.After(time.Second)
				began := time.Now()
				if err := w.client.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > bound {
					t.Errorf("closed after %v, want %v at most", took, bound)
				}
				err := <-result
				if name == "deaf" != errors.Is(err, amqpx.ErrDrainTimeout) || name != "deaf" && err != nil {
					t.Errorf("consume: %v", err)
				}
				close(done)
			})
		})
	}
}

// A handler that takes longer than the broker's consumer timeout keeps one slot,
// however often the broker delivers its message again meanwhile.
func TestSlowHandlerKeepsOneSlot(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		t.Run(version, func(t *testing.T) {
			inMemory(t, amqptest.Options{Version: version, ConsumerTimeout: time.Minute}, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var atOnce, most, good int
				stop := w.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
					mu.Lock()
					if d.ID != "slow" {
						good++
						mu.Unlock()
						return nil
					}
					atOnce++
					most = max(most, atOnce)
					mu.Unlock()
					<-time.After(20 * time.Minute)
					mu.Lock()
					atOnce--
					mu.Unlock()
					return nil
				}, amqpx.Concurrency(4))
				w.send(amqpx.Message{ID: "slow", Queue: "q"})
				<-time.After(10 * time.Minute)
				for i := range 50 {
					w.send(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
				}
				<-time.After(5 * time.Minute)
				mu.Lock()
				if most != 1 || good != 50 {
					t.Errorf("the slow handler ran %d times at once, %d of 50 others were handled", most, good)
				}
				mu.Unlock()
				_ = stop() // the slow handler may outlast the drain
				<-time.After(time.Hour)
			})
		})
	}
}

// A consumer that ends does not wait for a broker to take the retry of a message
// that has failed: the message goes back.
func TestDrainDoesNotWaitForARetryThatIsNotTaken(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		stop := w.consume("q", func(context.Context, *amqpx.Delivery) error {
			return amqpx.RetryIn(24*time.Hour, errors.New("no"))
		}, amqpx.DrainTimeout(time.Hour))
		undo := refuseDelays(w)
		defer undo()
		w.send(amqpx.Message{ID: "m", Queue: "q"})
		<-time.After(time.Minute)
		start := time.Now()
		if err := stop(); err != nil || time.Since(start) > 15*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if q := w.queue("q"); q.Ready != 1 || q.Unacked != 0 {
			t.Errorf("%d ready, %d held; want 1 and none", q.Ready, q.Unacked)
		}
	})
}

// What Send refuses at once as a destination Consume refuses, too, before it has
// run: it would wait for ever in silence.
func TestConsumeRefusesWhatItCannotUse(t *testing.T) {
	inMemory(t, amqptest.Options{}, func(t *testing.T, w *world) {
		owner, err := w.srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = owner.Close() }()
		ch, err := owner.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("mine", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		careful, err := amqpx.Open(t.Context(), amqpx.Config{URL: w.srv.URL(), Dial: w.srv.Dial, Declare: amqpx.DeclareNothing})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = careful.Close() }()
		for name, c := range map[string]struct {
			client *amqpx.Client
			queue  string
			is     error
		}{
			"exclusive to another": {w.client, "mine", topology.ErrDestination},
			"missing":              {careful, "orders.exprie", topology.ErrDestination},
			"no text":              {w.client, "a\xff", amqpx.ErrConfig},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			start := time.Now()
			err := c.client.Consume(ctx, c.queue, func(context.Context, *amqpx.Delivery) error { return nil })
			cancel()
			if !errors.Is(err, c.is) || time.Since(start) > time.Minute {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
		}
		if err := w.client.Consume(t.Context(), "q", func(context.Context, *amqpx.Delivery) error { return nil }, amqpx.DeadLetterQueue("amq.dead")); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("a reserved dead-letter queue: %v", err)
		}
		if err := w.client.Send(t.Context(), amqpx.Message{Queue: "a\xff"}); !errors.Is(err, amqpx.ErrMessage) {
			t.Errorf("a queue whose name is no text: %v", err)
		}
	})
}
