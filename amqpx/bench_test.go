package amqpx

import (
	"context"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// What the path of a message costs in this process. Whatever the broker takes is
// measured by `rabbitdelay-lab bench`.

var benchBody = make([]byte, 256)

// benchMessage has one of 300 delays, as messages of one kind have.
func benchMessage(i int) Message {
	return Message{Queue: "orders.expire", Delay: time.Duration(50+i%300) * 100 * time.Millisecond, Body: benchBody}
}

// BenchmarkPrepare checks and encodes a message up to what amqp091 is given.
func BenchmarkPrepare(b *testing.B) {
	c := offline(b, nil)
	now := time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m := benchMessage(i)
		if _, err := c.prepare(&m, "", now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode reads a received message.
func BenchmarkDecode(b *testing.B) {
	policy, err := dlx.NewRetryPolicy(topology.Retry{})
	if err != nil {
		b.Fatal(err)
	}
	k := &consumer{queue: "orders.expire", policy: policy}
	raw := amqp.Delivery{
		MessageId: "0199b0a0-5f1c-7000-8000-000000000000", Body: benchBody, Timestamp: time.Now(),
		Headers: amqp.Table{HeaderDue: time.Now().UnixMilli(), HeaderAttempt: int64(2)},
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := k.decode(raw); d.DueAt.IsZero() {
			b.Fatal("no due instant")
		}
	}
}

func benchServer(b *testing.B) *amqptest.Server {
	b.Helper()
	srv := amqptest.NewServer(amqptest.Options{})
	b.Cleanup(srv.Close)
	return srv
}

func benchClient(b *testing.B) *Client {
	b.Helper()
	srv := benchServer(b)
	client, err := Open(b.Context(), Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	return client
}

func rawChannel(b *testing.B, conn *amqp.Connection) *amqp.Channel {
	b.Helper()
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		b.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	return ch
}

// BenchmarkPublish is a message from the call to its confirm, by each way of
// sending, and by amqp091 itself without any header. The server in memory is part
// of what is measured; what the client adds is the difference to raw.
func BenchmarkPublish(b *testing.B) {
	const window = 1024
	b.Run("raw", func(b *testing.B) {
		conn, err := benchServer(b).Connect()
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		ch := rawChannel(b, conn)
		ring := make([]*amqp.DeferredConfirmation, window)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if c := ring[i%window]; c != nil && !c.Wait() {
				b.Fatal("not confirmed")
			}
			var err error
			ring[i%window], err = ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: benchBody})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, size := range []int{100, 5000} {
		b.Run("SendBatch-"+strconv.Itoa(size), func(b *testing.B) {
			client := benchClient(b)
			msgs := make([]Message, size)
			for i := range msgs {
				msgs[i] = benchMessage(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ { // a message, of which each size-th sends the batch
				if i%size > 0 {
					continue
				}
				if err := client.SendBatch(context.Background(), msgs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("Send-many", func(b *testing.B) {
		client := benchClient(b)
		if err := client.Send(b.Context(), benchMessage(0)); err != nil {
			b.Fatal(err)
		}
		b.SetParallelism(32) // times GOMAXPROCS
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if err := client.Send(context.Background(), benchMessage(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
