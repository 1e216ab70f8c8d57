package amqpx

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// What the path of a message costs in this process. Whatever the broker takes is
// measured by `rabbitdelay-lab bench`.

var benchBody = make([]byte, 256)

// BenchmarkPrepare checks and encodes a message up to what amqp091 is given.
func BenchmarkPrepare(b *testing.B) {
	c := offline(b, nil)
	now := time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m := Message{Queue: "orders.expire", Delay: time.Duration(50+i%300) * 100 * time.Millisecond, Body: benchBody}
		if _, err := c.prepare(&m, nil, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode reads a received message.
func BenchmarkDecode(b *testing.B) {
	k := &consumer{c: offline(b, nil), queue: "orders.expire", retry: topology.Retry{}.WithDefaults()}
	raw := amqp.Delivery{
		MessageId: "0199b0a0-5f1c-7000-8000-000000000000", Body: benchBody, Timestamp: time.Now(),
		Headers: amqp.Table{HeaderDue: time.Now().UnixMilli(), HeaderAttempt: int64(2)},
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := k.deliveryOf(raw); d.DueAt.IsZero() {
			b.Fatal("no due instant")
		}
	}
}
