package amqpx

import (
	"context"
	"runtime"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// consuming returns a client of an in-memory broker with the given number of consumers.
func consuming(t testing.TB, srv *amqptest.Server, consumers int) *Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := Open(ctx, Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, consumers)
	for range consumers {
		go func() { ended <- c.Consume(ctx, "q", func(context.Context, *Delivery) error { return nil }) }()
	}
	t.Cleanup(func() {
		cancel()
		for range consumers {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// BenchmarkHealth measures the cost of a probe with ten consumers.
func BenchmarkHealth(b *testing.B) {
	srv := amqptest.NewServer(amqptest.Options{})
	b.Cleanup(srv.Close)
	c := consuming(b, srv, 10)
	for len(c.Stats().Consumers) < 10 || c.Health() != nil {
		runtime.Gosched()
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Health(); err != nil {
			b.Fatal(err)
		}
	}
}
