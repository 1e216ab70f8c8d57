package amqpx_test

import (
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

var benchBody = make([]byte, 256)

// benchMessage returns a message with one of 300 similar delays, like the messages that a program sends for one
// purpose.
func benchMessage(i int) amqpx.Message {
	return amqpx.Message{Queue: "orders.expire", Delay: time.Duration(50+i%300) * 100 * time.Millisecond, Body: benchBody}
}

// BenchmarkPublish measures the cost of a message from the call to its confirm, for each way of sending and, as raw,
// for amqp091 alone without headers. The results include the in-memory server. The client's cost is the difference from
// raw.
func BenchmarkPublish(b *testing.B) {
	const window = 1024
	b.Run("raw", func(b *testing.B) {
		m := newMemory(b, amqptest.Options{})
		m.Declare("q", nil)
		ch := m.Channel()
		if err := ch.Confirm(false); err != nil {
			b.Fatal(err)
		}
		ring := make([]*amqp.DeferredConfirmation, window)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if c := ring[i%window]; c != nil && !c.Wait() {
				b.Fatalf("message %d was nacked, want a confirm", i-window)
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
			client := newMemory(b, amqptest.Options{}).open(amqpx.Config{})
			msgs := make([]amqpx.Message, size)
			for i := range msgs {
				msgs[i] = benchMessage(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ { // each iteration is a message; every size-th one sends a batch
				if i%size > 0 {
					continue
				}
				if err := client.SendBatch(b.Context(), msgs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("Send-many", func(b *testing.B) {
		client := newMemory(b, amqptest.Options{}).open(amqpx.Config{})
		client.mustSend(benchMessage(0))
		b.SetParallelism(32) // 32 times GOMAXPROCS goroutines
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if err := client.Send(b.Context(), benchMessage(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
