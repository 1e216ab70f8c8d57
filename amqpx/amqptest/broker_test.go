package amqptest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// Heartbeats keep an idle connection open. A client that sends nothing is disconnected after two intervals, and its
// unacknowledged messages return to the queue. A server without a heartbeat interval sends no heartbeats.
func TestHeartbeats(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, _ *amqptest.Server, conn *amqp.Connection) {
		if conn.Config.Heartbeat != 0 {
			t.Errorf("without a heartbeat interval: the connection has the interval %v, want 0", conn.Config.Heartbeat)
		}
	})
	bubble(t, amqptest.Options{Heartbeat: 10 * time.Second}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		if conn.Config.Heartbeat != 10*time.Second {
			t.Errorf("with a heartbeat interval of 10s: the connection has the interval %v, want 10s", conn.Config.Heartbeat)
		}
		<-time.After(time.Hour)
		ch := channel(t, conn)
		queue(t, ch, "q", nil)
		if err := ch.Publish("", "q", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		var wire *deaf
		other, err := amqp.DialConfig(srv.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
			c, err := srv.Dial(t.Context(), network, addr)
			wire = &deaf{Conn: c}
			return wire, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, _, err := channel(t, other).Get("q", false); err != nil {
			t.Fatal(err)
		}
		wire.stopped.Store(true)
		<-time.After(9 * time.Second)
		if q, _ := srv.Queue("q"); q.Unacked != 1 {
			t.Errorf("after 9s without heartbeats: %d messages are unacknowledged, want 1", q.Unacked)
		}
		<-time.After(20 * time.Second)
		if q, _ := srv.Queue("q"); q.Unacked != 0 || q.Ready != 1 || len(srv.Connections()) != 1 {
			t.Errorf("after 29s without heartbeats: got %d unacknowledged and %d ready messages and %d connections, want 0, 1 and 1", q.Unacked, q.Ready, len(srv.Connections()))
		}
	})
}

// deaf is a connection that drops what is written to it once stopped is true.
type deaf struct {
	net.Conn

	stopped atomic.Bool
}

func (d *deaf) Write(b []byte) (int, error) {
	if d.stopped.Load() {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

func TestUsersAndVHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{
			Version: "3.10.8", VHosts: []string{"shop"},
			Users: []amqptest.User{{Name: "shop", Password: "p@:/", Write: "^amq.default$", Read: "^orders", VHosts: []string{"shop"}}},
		})
		defer srv.Close()
		dial := func(url string) (*amqp.Connection, error) {
			return amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) { return srv.Dial(context.Background(), network, addr) }})
		}
		for vhost, want := range map[string]string{"": "access to vhost '/' refused for user 'shop'", "none": "vhost none not found"} {
			if _, err := dial(strings.Replace(srv.URL(), "/?", "/"+vhost+"?", 1)); !says(err, 530, want) {
				t.Errorf("virtual host %q: got %v, want reply 530 %q", vhost, err, want)
			}
		}
		conn, err := dial(strings.Replace(srv.URL(), "/?", "/shop?", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, returned := confirming(t, conn)
		if !publish(t, ch, "", "nowhere", amqp.Publishing{}).Wait() || len(returned) != 1 {
			t.Errorf("after an unroutable message to a permitted exchange: got %d returns, want 1", len(returned))
		}
		for _, try := range []struct {
			want string
			do   func(ch *amqp.Channel) error
		}{
			{"access to queue 'orders' in vhost 'shop' refused for user 'shop'", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("orders", true, false, false, false, nil)
				return err
			}},
			{"access to exchange 'amq.topic' in vhost 'shop' refused", func(ch *amqp.Channel) error {
				return errors.Join(ch.Publish("amq.topic", "k", false, false, amqp.Publishing{}), ch.Qos(1, 0, false))
			}},
			{"access to queue 'other' in vhost 'shop' refused", func(ch *amqp.Channel) error {
				_, err := ch.Consume("other", "", false, false, false, false, nil)
				return err
			}},
			{"NOT_FOUND - no queue 'orders.1' in vhost 'shop'", func(ch *amqp.Channel) error {
				_, err := ch.Consume("orders.1", "", false, false, false, false, nil)
				return err
			}},
		} {
			ch := channel(t, conn)
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			err := try.do(ch)
			if reason := <-closed; err == nil || !strings.Contains(reason.Reason, try.want) {
				t.Errorf("the method returned %v and the channel was closed with %v, want an error and a close reason with %q", err, reason, try.want)
			}
		}
	})
}

// The plugin probe, which relies on the refusals of each RabbitMQ version, reports whether the server has the plugin.
func TestPlugin(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.0"} {
		for _, there := range []bool{true, false} {
			srv := amqptest.NewServer(amqptest.Options{Version: version, Plugin: there})
			err := live.ProbePlugin(t.Context(), func(context.Context) (*amqp.Connection, error) { return srv.Connect() })
			if there != (err == nil) || !there && !errors.Is(err, live.ErrNoPlugin) {
				t.Errorf("RabbitMQ %s with the plugin: %t: got %v, want live.ErrNoPlugin only without the plugin", version, there, err)
			}
			srv.Close()
		}
	}
}

// A large body is split into several frames, in both directions. A body that is too large is refused with the same text
// as by RabbitMQ.
func TestBodies(t *testing.T) {
	bubble(t, amqptest.Options{FrameMax: 8192, MaxMessageSize: 100_000}, func(t *testing.T, _ *amqptest.Server, conn *amqp.Connection) {
		ch, _ := confirming(t, conn)
		queue(t, ch, "q", nil)
		for _, size := range []int{0, 1, 8184, 8185, 100_000} {
			body := []byte(strings.Repeat("x", size))
			if !publish(t, ch, "", "q", amqp.Publishing{Body: body, Headers: amqp.Table{"size": int64(size)}}).Wait() {
				t.Fatalf("a message of %d bytes was nacked, want a confirm", size)
			}
			d, ok, err := ch.Get("q", true)
			if err != nil || !ok || !bytes.Equal(d.Body, body) || d.Headers["size"] != int64(size) {
				t.Errorf("basic.get: got ok = %t, %d bytes, header size = %v, error %v, want ok, %d bytes, the same size in the header and no error", ok, len(d.Body), d.Headers["size"], err, size)
			}
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		publish(t, ch, "", "q", amqp.Publishing{Body: make([]byte, 100_001)})
		if err := <-closed; !says(err, 406, "message size 100001 is larger than configured max size 100000") {
			t.Errorf(`the channel's close after a message that is too large: got %v, want reply 406 "message size 100001 is larger than configured max size 100000"`, err)
		}
	})
}

// If two clients create the same binding at the same time, the second one gets its answer before the binding routes
// messages.
func TestLateBindings(t *testing.T) {
	bubble(t, amqptest.Options{Version: "4.0.5", LateBindings: 50 * time.Millisecond}, func(t *testing.T, _ *amqptest.Server, conn *amqp.Connection) {
		ch, returned := confirming(t, conn)
		queue(t, ch, "q", nil)
		first, second := channel(t, conn), channel(t, conn)
		began := time.Now()
		slow := make(chan time.Duration)
		go func() {
			if err := first.QueueBind("q", "k", "amq.topic", false, nil); err != nil {
				t.Error(err)
			}
			slow <- time.Since(began)
		}()
		synctest.Wait()
		if err := second.QueueBind("q", "k", "amq.topic", false, nil); err != nil || time.Since(began) != 0 {
			t.Errorf("the second bind: got %v after %v, want nil after 0s", err, time.Since(began))
		}
		if publish(t, ch, "amq.topic", "k", amqp.Publishing{}).Wait(); len(returned) != 1 {
			t.Errorf(`a publish before the binding is effective: got %d returned messages, want 1`, len(returned))
		}
		if took := <-slow; took != 50*time.Millisecond {
			t.Errorf("the first bind was answered after %v, want 50ms", took)
		}
		if publish(t, ch, "amq.topic", "k", amqp.Publishing{}).Wait(); len(returned) != 1 {
			t.Errorf(`a publish after the binding became effective: got %d returned messages in total, want still 1`, len(returned))
		}
	})
}

// Exclusive queues are deleted with their connection, auto-delete queues with their last consumer, and unused queues
// after x-expires.
func TestExclusiveAndAutoDelete(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		other, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		ch := channel(t, other)
		named, err := ch.QueueDeclare("", false, false, true, false, nil)
		if err != nil || !strings.HasPrefix(named.Name, "amq.gen-") {
			t.Fatalf(`QueueDeclare without a name: got %q, error %v, want a name that starts with "amq.gen-" and no error`, named.Name, err)
		}
		if _, err := ch.QueueDeclare("auto", true, true, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Consume("auto", "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if got := srv.Queues(); !slices.Equal(got, []string{named.Name, "auto"}) {
			t.Errorf(`the server has the queues %q, want [%q "auto"]`, got, named.Name)
		}
		_ = other.Close()
		if got := srv.Queues(); len(got) != 0 {
			t.Errorf("after the connection was closed, the server has the queues %q, want none", got)
		}
		mine := channel(t, conn)
		queue(t, mine, "unused", amqp.Table{"x-expires": int64(60_000)})
		<-time.After(59 * time.Second)
		if _, ok := srv.Queue("unused"); !ok {
			t.Error("the queue unused does not exist after 59s, want it to exist for 60s")
		}
		<-time.After(2 * time.Second)
		if _, ok := srv.Queue("unused"); ok {
			t.Error("the queue unused exists after 61s, want it deleted after 60s")
		}
	})
}

// The prefetch limits how many unacknowledged messages a consumer has, consumers receive messages in turn, and a single
// active consumer receives all messages until its channel is closed.
func TestConsumers(t *testing.T) {
	bubble(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		pub := channel(t, conn)
		queue(t, pub, "turns", nil)
		queue(t, pub, "single", amqp.Table{"x-single-active-consumer": true})
		consume := func(queue string, prefetch int) (*amqp.Channel, <-chan amqp.Delivery) {
			ch := channel(t, conn)
			if err := ch.Qos(prefetch, 0, false); err != nil {
				t.Fatal(err)
			}
			in, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan amqp.Delivery, 100)
			go func() {
				for d := range in {
					got <- d
				}
			}()
			return ch, got
		}
		_, a := consume("turns", 2)
		_, b := consume("turns", 3)
		first, c := consume("single", 1)
		_, d := consume("single", 1)
		for i := range 10 {
			for _, q := range []string{"turns", "single"} {
				if err := pub.Publish("", q, false, false, amqp.Publishing{MessageId: fmt.Sprint(i)}); err != nil {
					t.Fatalf("publishing to %s: got %v, want no error", q, err)
				}
			}
		}
		synctest.Wait()
		if len(a) != 2 || len(b) != 3 || len(c) != 1 || len(d) != 0 {
			t.Errorf("consumers a, b, c and d: got %d, %d, %d and %d deliveries, want 2, 3, 1 and 0", len(a), len(b), len(c), len(d))
		}
		x := <-a
		if x.MessageId != "0" {
			t.Errorf(`the first consumer of turns got the message %q, want "0"`, x.MessageId)
		}
		if err := x.Ack(true); err != nil {
			t.Errorf("acknowledging the first consumer's message: got %v, want no error", err)
		}
		_ = first.Close()
		synctest.Wait()
		if x := <-d; x.MessageId != "0" || !x.Redelivered {
			t.Errorf(`the next single active consumer got the message %q with Redelivered = %t, want "0" and true`, x.MessageId, x.Redelivered)
		}
		if q, _ := srv.Queue("turns"); q.Ready != 4 || q.Unacked != 5 || q.Consumers != 2 {
			t.Errorf("queue turns: got %d ready and %d unacknowledged messages and %d consumers, want 4, 5 and 2", q.Ready, q.Unacked, q.Consumers)
		}
	})
}

// The server's state and the client's operations can be inspected.
func TestLooking(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		ch := channel(t, conn)
		before := amqptest.RoundTrips(srv)
		if err := ch.ExchangeDeclare("x", "topic", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		queue(t, ch, "q", amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(60_000)})
		if err := ch.QueueBind("q", "a.*", "x", false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.Publish("x", "a.b", false, false, amqp.Publishing{Body: []byte("m")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := amqptest.RoundTrips(srv) - before; n != 3 || srv.Calls("queue.declare") != 1 || srv.Publishes("x") != 1 {
			t.Errorf("after three declarations and a publish: got %d round trips, %d declarations and %d publishes, want 3, 1 and 1", n, srv.Calls("queue.declare"), srv.Publishes("x"))
		}
		q, _ := srv.Queue("q")
		if m := q.Messages[0]; q.Type != "quorum" || string(m.Body) != "m" || m.Exchange != "x" || m.RoutingKey != "a.b" || time.Until(m.Expires) != time.Minute {
			t.Errorf(`queue q: got %+v, want the type "quorum" and a message "m" from the exchange "x" with the key "a.b", which expires in 1m`, q)
		}
		if b := srv.Bindings("x"); len(b) != 1 || b[0].Queue != "q" || b[0].RoutingKey != "a.*" {
			t.Errorf(`Bindings("x"): got %+v, want one, for the queue "q" with the key "a.*"`, b)
		}
		if x := srv.Exchanges(); len(x) != 1 || x[0].Name != "x" || x[0].Type != "topic" {
			t.Errorf(`Exchanges: got %+v, want only the topic exchange "x"`, x)
		}
		srv.CloseConnections("maintenance")
		synctest.Wait()
		if !conn.IsClosed() || len(srv.Connections()) != 0 {
			t.Errorf("after CloseConnections: got a closed connection: %t and %d connections on the server, want true and 0", conn.IsClosed(), len(srv.Connections()))
		}
	})
}

// NewServer panics if the options are invalid.
func TestOptionsAreChecked(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "expected one like 4.3.0") {
			t.Errorf(`NewServer with an invalid version: got the panic %v, want one with "expected one like 4.3.0"`, r)
		}
	}()
	amqptest.NewServer(amqptest.Options{Version: "latest"})
}
