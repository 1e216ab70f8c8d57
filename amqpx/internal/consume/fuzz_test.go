package consume_test

import (
	"math"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// The replacement for any received message can be published.
func FuzzReplace(f *testing.F) {
	f.Add(int64(0), int64(0), "", []byte(nil))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), "x", []byte("y"))
	srv := amqptest.NewServer(amqptest.Options{})
	f.Cleanup(srv.Close)
	cfg := amqpx.Config{URL: srv.URL(), Dial: srv.Dial}
	conn, err := cfg.Internals(inner.Access{}).Dial(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close() })
	pass, err := cfg.Internals(inner.Access{}).Rehearse(conn)
	if err != nil {
		f.Fatal(err)
	}
	strategy, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, due, attempt int64, s string, b []byte) {
		raw := amqp.Delivery{MessageId: s, Body: b, Headers: amqp.Table{
			header.Due: due, header.Attempt: attempt, header.Attempts: []any{s, b, due, nil}, header.Error: b, s: s,
		}}
		for _, p := range consume.Replacements(raw, strategy) {
			if p.Attempt < 1 {
				t.Fatalf("the replacement has the attempt %d, want at least 1", p.Attempt)
			}
			p.Headers = nil
			if err := pass(t.Context(), p); err != nil && len(s) <= 255 {
				t.Fatalf("publish the replacement: got %v, want nil", err)
			}
		}
	})
}
