package consume

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestDecodeAcceptsAnyMessage(t *testing.T) {
	for name, tc := range map[string]struct {
		headers amqp.Table
		due     int64
		attempt int
		version int64
	}{
		"none":         {nil, 0, 1, 0},
		"all":          {amqp.Table{header.Due: int64(5000), header.Attempt: int64(3), header.Version: int64(7)}, 5000, 3, 7},
		"narrow":       {amqp.Table{header.Due: int32(5000), header.Attempt: int8(3), header.Version: int16(7)}, 5000, 3, 7},
		"strings":      {amqp.Table{header.Due: "5000", header.Attempt: "3"}, 0, 1, 0},
		"tables":       {amqp.Table{header.Due: amqp.Table{}, header.Attempt: []any{1}}, 0, 1, 0},
		"negative":     {amqp.Table{header.Due: int64(-1), header.Attempt: int64(-3), header.Version: int64(-7)}, 0, 1, 0},
		"out of range": {amqp.Table{header.Due: int64(math.MaxInt64), header.Attempt: int64(math.MaxInt64)}, 0, 1, 0},
		"nulls":        {amqp.Table{header.Due: nil, header.Attempt: nil, header.Attempts: nil}, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decode(amqp.Delivery{Headers: tc.headers}, "q", topology.DefaultPrefix)
			var due int64
			if !d.DueAt.IsZero() {
				due = d.DueAt.UnixMilli()
			}
			if due != tc.due || d.Attempt != tc.attempt || d.Version != tc.version {
				t.Fatalf("Decode: got the due time %d, attempt %d and version %d, want %+v", due, d.Attempt, d.Version, tc)
			}
		})
	}
}

// A message that is due immediately has the due time 0, so its lateness counts from its creation. The lateness of a
// message without a due time is unknown.
func TestDecodeDueImmediately(t *testing.T) {
	created := time.UnixMilli(1_800_000_000_000)
	d := Decode(amqp.Delivery{Headers: amqp.Table{header.Due: int64(0), header.Created: created.UnixMilli()}}, "q", topology.DefaultPrefix)
	if since := DueSince(d.DueAt, d.Created, d.Timestamp); d.DueAt.IsZero() || d.DueAt.UnixMilli() != 0 || !since.Equal(created) {
		t.Errorf("due time 0: got DueAt %v, counted from %v, want the Unix epoch, counted from %v", d.DueAt, since, created)
	}
	d = Decode(amqp.Delivery{Headers: amqp.Table{header.Created: created.UnixMilli()}}, "q", topology.DefaultPrefix)
	if since := DueSince(d.DueAt, d.Created, d.Timestamp); !d.DueAt.IsZero() || !since.IsZero() {
		t.Errorf("no due time: got DueAt %v, counted from %v, want two zero times", d.DueAt, since)
	}
}

// A retry uses a delay that the strategy supports.
func TestRetryDelaysFitTheStrategy(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{5 * time.Second, time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		s          Strategy
		want, from time.Duration
	}{
		{ttl, 5 * time.Second, time.Second},
		{ttl, 5 * time.Second, 5 * time.Second},
		{ttl, time.Minute, 6 * time.Second},
		{ttl, time.Minute, time.Hour},
		{bucket, 7 * time.Second, 7 * time.Second},
		{bucket, bucket.MaxDelay(), math.MaxInt64},
	} {
		got := PossibleDelay(tc.s, "q", tc.from)
		if got != tc.want {
			t.Errorf("PossibleDelay(%v) = %v, want %v", tc.from, got, tc.want)
		}
		if _, err := tc.s.Route(topology.Destination{Queue: "q"}, got, 0); err != nil {
			t.Errorf("route with a delay of %v: got %v, want nil", got, err)
		}
	}
}

// BenchmarkDecode measures the decoding of a received message.
func BenchmarkDecode(b *testing.B) {
	raw := amqp.Delivery{
		MessageId: "0199b0a0-5f1c-7000-8000-000000000000", Body: make([]byte, 256), Timestamp: time.Now(),
		Headers: amqp.Table{header.Due: time.Now().UnixMilli(), header.Attempt: int64(2)},
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := Decode(raw, "orders.expire", topology.DefaultPrefix); d.DueAt.IsZero() {
			b.Fatal("DueAt: got the zero time, want the due time in the header")
		}
	}
}
