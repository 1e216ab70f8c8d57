package amqpx

import (
	"testing"
	"time"
)

// These benchmarks measure what a message costs in this process. `make bench` measures the cost of the broker.

var benchBody = make([]byte, 256)

// BenchmarkPrepare measures how long it takes to check a message and to encode it into the arguments for amqp091.
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
