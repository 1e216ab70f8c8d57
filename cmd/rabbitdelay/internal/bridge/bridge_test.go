package bridge_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// site is an in-memory broker with a bridge's exchange.
type site struct {
	*testing.T
	*amqptest.Server

	x  bridge.Exchange
	ch *amqp.Channel // a channel of a program that does not use rabbitdelay
}

func inMemory(t *testing.T, version, kind string, test func(s *site)) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: version})
		t.Cleanup(srv.Close)
		s := &site{T: t, Server: srv, x: bridge.Exchange{Name: "shop", Type: kind}}
		s.connect()
		c := s.open()
		if err := c.Apply(t.Context(), s.x.Topology()); err != nil {
			t.Fatal(err)
		}
		test(s)
	})
}

// connect opens a connection and a channel. It is called again after the connection was cut.
func (s *site) connect() {
	s.Helper()
	conn, err := s.Server.Connect()
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	if s.ch, err = conn.Channel(); err != nil {
		s.Fatal(err)
	}
	if err := s.ch.Confirm(false); err != nil {
		s.Fatal(err)
	}
}

func (s *site) open() *amqpx.Client {
	s.Helper()
	c, err := amqpx.Open(s.Context(), amqpx.Config{URL: s.URL(), Dial: s.Dial})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// start runs a bridge until stop is called.
func (s *site) start() (b *bridge.Bridge, stop func()) {
	s.Helper()
	b, err := bridge.New(s.open(), bridge.Config{Exchange: s.x})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	synctest.Wait()
	return b, func() {
		s.Helper()
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("Run returned %v, want no error", err)
		}
	}
}

// bind declares a queue of the application and binds it to the exchange for due messages.
func (s *site) bind(queue, key string, args amqp.Table) {
	s.Helper()
	if _, err := s.ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		s.Fatal(err)
	}
	if err := s.ch.QueueBind(queue, key, s.x.Due(), false, args); err != nil {
		s.Fatal(err)
	}
}

// publish publishes a message until the broker has confirmed it.
func (s *site) publish(key string, p amqp.Publishing) {
	s.Helper()
	for range 5 {
		conf, err := s.ch.PublishWithDeferredConfirm(s.x.Name, key, true, false, p)
		if err == nil && conf.Wait() {
			return
		}
		s.connect()
	}
	s.Fatal("got no confirm for the message in 5 attempts")
}

func (s *site) messages(queue string) []amqptest.Message {
	s.Helper()
	q, ok := s.Queue(queue)
	if !ok {
		s.Fatalf("queue %s does not exist", queue)
	}
	return q.Messages
}

// arrival is the routing key of a message and the time at which it reached the application's consumer.
type arrival struct {
	key string
	at  time.Time
}

// arrivals consumes from queues as the application does. all returns the arrivals by message id.
func (s *site) arrivals(queues ...string) (all func() map[string][]arrival) {
	s.Helper()
	var mu sync.Mutex
	came := map[string][]arrival{}
	for _, q := range queues {
		c := s.open()
		go func() {
			_ = c.Consume(s.Context(), q, func(_ context.Context, d *amqpx.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				came[d.ID] = append(came[d.ID], arrival{d.RoutingKey, time.Now()})
				return nil
			})
		}()
	}
	return func() map[string][]arrival {
		mu.Lock()
		defer mu.Unlock()
		return came
	}
}

// sent is a message as its producer published it.
type sent struct {
	id, key string
	at      time.Time
	delay   time.Duration
}

// header returns a value for x-delay and the delay that the plugin derives from it.
func header(i int) (any, time.Duration) {
	ms := 1 + rand.IntN(600_000)
	d := time.Duration(ms) * time.Millisecond
	switch i % 10 {
	case 0:
		return nil, 0
	case 1:
		return int32(-ms), 0
	case 2:
		return fmt.Sprint(ms), d
	case 3:
		return float64(ms) + 0.5, d
	case 4:
		return int64(1) << 40, 0
	}
	return int32(ms), d
}

// A thousand messages with different keys pass through an exchange of each type, while connections are cut during
// acknowledgements and publishes, queues refuse messages, the broker blocks and bridges are replaced. No message is
// lost, early or delivered with another key, and no queue is declared for a key.
func TestBridgeLosesNothing(t *testing.T) {
	const messages, keys = 1000, 1000
	for _, kind := range bridge.Types() {
		t.Run(kind, func(t *testing.T) {
			inMemory(t, "4.0.5", kind, func(s *site) {
				queues := []string{"out.0", "out.1"}
				for i := range keys {
					if kind == amqp.ExchangeDirect {
						s.bind(queues[i%2], fmt.Sprintf("order.%d.%d", i%2, i), nil)
					}
				}
				for i, q := range queues {
					switch kind {
					case amqp.ExchangeTopic:
						s.bind(q, fmt.Sprintf("order.%d.*", i), nil)
					case amqp.ExchangeFanout:
						s.bind(queues[0], "", nil)
						s.bind(queues[1], "", nil)
					case amqp.ExchangeHeaders:
						s.bind(q, "", amqp.Table{"x-match": "all", "half": int32(i)})
					}
				}
				all := s.arrivals(queues...)
				s.start()
				before := len(s.Queues())
				go s.trouble()
				list := s.load(messages, keys)
				<-time.After(time.Hour)
				synctest.Wait()
				s.compare(kind, list, all())
				if n := len(s.Queues()); n > before+4 { // the delay queues existed before
					s.Errorf("there are %[2]d queues after %[1]d before, want at most %[3]d", before, n, before+4)
				}
				for _, q := range []string{s.x.Queue(), s.x.DueQueue(), s.x.DeadQueue(), "delay.parked"} {
					if q, ok := s.Queue(q); ok && q.Ready+q.Unacked > 0 {
						s.Errorf("queue %s has %d ready and %d unacknowledged messages, want 0 and 0", q.Name, q.Ready, q.Unacked)
					}
				}
			})
		})
	}
}

// load publishes messages for a few minutes, and returns them.
func (s *site) load(messages, keys int) []sent {
	var list []sent
	for i := range messages {
		k := rand.IntN(keys)
		m := sent{id: fmt.Sprint("m", i), key: fmt.Sprintf("order.%d.%d", k%2, k), at: time.Now()}
		h := amqp.Table{"half": int32(k % 2)}
		var v any
		if v, m.delay = header(i); v != nil {
			h[bridge.Header] = v
		}
		s.publish(m.key, amqp.Publishing{MessageId: m.id, Headers: h, DeliveryMode: amqp.Persistent})
		list = append(list, m)
		<-time.After(250 * time.Millisecond)
	}
	return list
}

// trouble injects faults for a few minutes.
func (s *site) trouble() {
	var undo []func()
	for range 60 {
		<-time.After(rand.N(10 * time.Second))
		switch rand.IntN(7) {
		case 0:
			s.CutConnections()
		case 1:
			undo = append(undo, s.CutAt("basic.ack", 1+rand.IntN(300)))
		case 2:
			undo = append(undo, s.CutAt("basic.publish", 1+rand.IntN(300)))
		case 3:
			s.refuse("out.0")
		case 4:
			s.refuse(s.delayQueues()...)
		case 5:
			unblock := s.Block("memory")
			<-time.After(longerThanATry)
			unblock()
		case 6:
			_, stop := s.start()
			<-time.After(rand.N(5 * time.Second))
			stop()
		}
	}
	for _, f := range undo {
		f()
	}
}

const longerThanATry = 15 * time.Second

// refuse makes queues refuse messages until undo is called.
func (s *site) refuse(queues ...string) {
	undo := make([]func(), len(queues))
	for i, q := range queues {
		undo[i] = s.Nack(q)
	}
	<-time.After(longerThanATry)
	for _, f := range undo {
		f()
	}
}

func (s *site) delayQueues() (names []string) {
	for _, q := range s.Queues() {
		if strings.HasPrefix(q, "delay.bucket.") {
			names = append(names, q)
		}
	}
	return names
}

func (s *site) compare(kind string, list []sent, came map[string][]arrival) {
	s.Helper()
	var lost, early, wrong, twice int
	for _, m := range list {
		got := came[m.id]
		if len(got) == 0 {
			lost++
		}
		want := 1
		if kind == amqp.ExchangeFanout {
			want = 2
		}
		if len(got) > want {
			twice++
		}
		for _, a := range got {
			if a.at.UnixMilli() < m.at.UnixMilli()+m.delay.Milliseconds() { // times are whole milliseconds
				early++
			}
			if a.key != m.key {
				wrong++
			}
		}
	}
	if lost+early+wrong > 0 || len(came) != len(list) {
		s.Errorf("of %d messages, %d were lost, %d early and %d had another key; %d ids arrived, and %d messages more than once; want 0 lost, early or with another key, and all ids", len(list), lost, early, wrong, len(came), twice)
	}
	s.Logf("%d of %d messages arrived more than once", twice, len(list))
}

// A message is dead-lettered with a reason if no queue is bound with its routing key, if its x-delay is not a number,
// or if its user is not the bridge's. After the cause was fixed, it can be requeued. Other messages are not delayed.
func TestBridgeParksWithReason(t *testing.T) {
	inMemory(t, "4.3.0", "direct", func(s *site) {
		s.bind("out", "wanted", nil)
		b, stop := s.start()
		defer stop()
		s.publish("unwanted", amqp.Publishing{MessageId: "a", Expiration: "90000", Headers: amqp.Table{"x-delay": int32(1000)}})
		s.publish("wanted", amqp.Publishing{MessageId: "b", Headers: amqp.Table{"x-delay": "soon"}})
		s.publish("wanted", amqp.Publishing{MessageId: "c", Headers: amqp.Table{"x-delay": int32(1000)}})
		<-time.After(30 * time.Second)
		if got := s.messages("out"); len(got) != 1 || got[0].MessageId != "c" || got[0].Headers["x-delay"] != int64(-1000) {
			s.Errorf(`queue out has %+v, want one message with MessageId = "c" and Headers["x-delay"] = %v`, got, int64(-1000))
		}
		reasons := map[string]any{}
		for _, m := range s.messages(s.x.DeadQueue()) {
			reasons[m.MessageId] = m.Headers[amqpx.HeaderError]
		}
		if len(reasons) != 2 || reasons["a"] == nil || reasons["b"] == nil {
			s.Fatalf(`got the dead letters' reasons %v, want one for a and one for b`, reasons)
		}
		if got := b.Stats(); got != (bridge.Stats{Delayed: 2, Delivered: 1, Dead: 2}) {
			s.Errorf("got the statistics %+v, want Delayed = 2, Delivered = 1 and Dead = 2", got)
		}
		s.bind("late", "unwanted", nil)
		rep, err := inspect.Requeue(s.Context(), s.open(), inspect.RequeueOptions{Queue: s.x.DeadQueue(), Filter: inspect.DeadLetterFilter{IDs: []string{"a"}}})
		if err != nil || rep.Sent != 1 {
			s.Fatalf("requeue: got %+v, %v, want no error and Sent = 1", rep, err)
		}
		<-time.After(time.Second)
		if got := s.messages("late"); len(got) != 1 || got[0].RoutingKey != "unwanted" || got[0].Expiration != "90000" {
			s.Errorf(`queue late has %+v, want one message with RoutingKey = "unwanted" and Expiration = "90000"`, got)
		}
	})
}

// A message that expires while no bridge is running is still delayed, and its expiration counts from its due time.
func TestBridgeAfterAnAbsence(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		t.Run(version, func(t *testing.T) {
			inMemory(t, version, "topic", func(s *site) {
				s.bind("out", "order.*", nil)
				s.bind("copies", "copy", nil)
				s.publish("order.7", amqp.Publishing{MessageId: "a", Expiration: "2000", Headers: amqp.Table{"x-delay": int32(60_000), "CC": []any{"copy"}}})
				<-time.After(10 * time.Second)
				_, stop := s.start()
				<-time.After(59 * time.Second)
				if got := s.messages("out"); len(got) != 0 {
					s.Fatalf("before the due time, queue out has %+v, want no message", got)
				}
				<-time.After(1500 * time.Millisecond)
				for _, q := range []string{"out", "copies"} {
					if got := s.messages(q); len(got) != 1 || got[0].Expiration != "2000" || got[0].RoutingKey != "order.7" {
						s.Errorf(`queue %s has %+v, want one message with Expiration = "2000" and RoutingKey = "order.7"`, q, got)
					}
				}
				<-time.After(3 * time.Second)
				if got := s.messages("out"); len(got) != 0 {
					s.Errorf("after its expiration, queue out has %+v, want no message", got)
				}
				stop()
			})
		})
	}
}

// A message that amqp091 cannot read is dead-lettered with the reason, whether a bridge receives it before or after it
// has expired. Other messages do not wait for it, and the bridge's connections stay open.
func TestBridgeSetsAsideUnreadableMessages(t *testing.T) {
	deep := amqp.Table{}
	for range 35 {
		deep = amqp.Table{"t": deep}
	}
	for name, headers := range map[string]amqp.Table{
		"wide": {bridge.Header: 1000, "ids": make([]any, 9000)},
		"deep": {bridge.Header: 1000, "a": deep},
	} {
		for _, expired := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, expired %t", name, expired), func(t *testing.T) {
				inMemory(t, "4.3.0", "topic", func(s *site) {
					s.bind("out", "#", nil)
					bad := amqp.Publishing{MessageId: "bad", Headers: headers, Body: []byte("kept"), AppId: "old"}
					if expired {
						bad.Expiration = "100"
					}
					good := func(id string) amqp.Publishing {
						return amqp.Publishing{MessageId: id, Headers: amqp.Table{bridge.Header: 1000}}
					}
					s.publish("k", good("before"))
					s.publish("k", bad)
					s.publish("k", good("after"))
					<-time.After(time.Second) // no bridge is running
					c := s.open()
					b, err := bridge.New(c, bridge.Config{Exchange: s.x})
					if err != nil {
						s.Fatal(err)
					}
					ctx, stop := context.WithCancel(s.Context())
					ended := make(chan error, 1)
					go func() { ended <- b.Run(ctx) }()
					<-time.After(5 * time.Second)
					var out []string
					for _, m := range s.messages("out") {
						out = append(out, m.MessageId)
					}
					if slices.Sort(out); !slices.Equal(out, []string{"after", "before"}) {
						s.Errorf(`the application received %q, want ["after" "before"]`, out)
					}
					dead, err := inspect.Peek(ctx, dialed(s), s.x.DeadQueue(), inspect.PeekOptions{})
					if err != nil || len(dead.Messages) != 1 {
						s.Fatalf("dead letters: got %+v (error %v), want one message", dead, err)
					}
					if l := dead.Messages[0]; l.Reason != inspect.ReasonUnreadable || string(l.Body) != "kept" || l.ID != "bad" {
						s.Errorf(`dead letter: got %+v, want Reason = inspect.ReasonUnreadable, Body = "kept" and ID = "bad"`, l)
					}
					if st := c.Stats(); st.Consume.Sessions != 1 || st.Publish.Sessions != 1 || b.Health() != nil {
						s.Errorf("the client opened %d consumer and %d publisher sessions, and Health returned %v, want 1, 1 and nil", st.Consume.Sessions, st.Publish.Sessions, b.Health())
					}
					stop()
					if err := <-ended; err != nil {
						s.Error(err)
					}
				})
			})
		}
	}
}

func dialed(s *site) *amqp.Connection {
	s.Helper()
	conn, err := inspect.Dial(s.Context(), amqpx.Config{URL: s.URL(), Dial: s.Dial})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Declare returns a conflict for the plugin's own exchange, and New refuses exchanges that cannot be bridged.
func TestBridgeRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
		t.Cleanup(srv.Close)
		s := &site{T: t, Server: srv, x: bridge.Exchange{Name: "shop", Type: "direct"}}
		s.connect()
		if err := s.ch.ExchangeDeclare("shop", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}); err != nil {
			t.Fatal(err)
		}
		c := s.open()
		b, err := bridge.New(c, bridge.Config{Exchange: s.x})
		if err != nil {
			t.Fatal(err)
		}
		err = b.Declare(t.Context())
		if _, conflict := errors.AsType[*topology.ConflictError](err); !conflict {
			t.Errorf("Declare with the plugin's exchange: got the error %v, want a *topology.ConflictError", err)
		}
		for _, x := range []bridge.Exchange{
			{}, {Name: "shop"}, {Name: "shop", Type: "x-delayed-message"}, {Name: "delay.plugin", Type: "topic"},
			{Name: "amq.topic", Type: "topic"},
		} {
			if _, err := bridge.New(c, bridge.Config{Exchange: x}); !errors.Is(err, bridge.ErrExchange) {
				t.Errorf("%+v: got %v, want bridge.ErrExchange", x, err)
			}
		}
	})
}

// Bypasses returns bindings other than the bridge's own, through which queues would receive messages without a delay.
func TestBypasses(t *testing.T) {
	x := bridge.Exchange{Name: "shop", Type: "topic"}
	own := x.Topology().Bindings
	other := topology.Binding{Exchange: "shop", Queue: "mail", RoutingKey: "order.#"}
	got := x.Bypasses(slices.Concat(own, []topology.Binding{other, {Exchange: "shop.due", Queue: "mail"}}))
	if len(got) != 1 || cmp.Compare(got[0].Queue, "mail") != 0 {
		t.Errorf("Bypasses returned %v, want the binding of queue mail", got)
	}
}
