package amqpx

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

var errTest = errors.New("it failed")

func testConsumer(t testing.TB, s Strategy, opts ...ConsumeOption) *consumer {
	t.Helper()
	k, err := offline(t, s).newConsumer("q", func(context.Context, *Delivery) error { return nil }, opts)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestDecodeTakesWhateverComes(t *testing.T) {
	k := testConsumer(t, nil)
	for name, tc := range map[string]struct {
		headers amqp.Table
		due     int64
		attempt int
		version int64
	}{
		"none":         {nil, 0, 1, 0},
		"all":          {amqp.Table{HeaderDue: int64(5000), HeaderAttempt: int64(3), HeaderVersion: int64(7)}, 5000, 3, 7},
		"narrow":       {amqp.Table{HeaderDue: int32(5000), HeaderAttempt: int8(3), HeaderVersion: int16(7)}, 5000, 3, 7},
		"strings":      {amqp.Table{HeaderDue: "5000", HeaderAttempt: "3"}, 0, 1, 0},
		"tables":       {amqp.Table{HeaderDue: amqp.Table{}, HeaderAttempt: []any{1}}, 0, 1, 0},
		"negative":     {amqp.Table{HeaderDue: int64(-1), HeaderAttempt: int64(-3)}, 0, 1, 0},
		"out of range": {amqp.Table{HeaderDue: int64(math.MaxInt64), HeaderAttempt: int64(math.MaxInt64)}, 0, 1, 0},
		"nulls":        {amqp.Table{HeaderDue: nil, HeaderAttempt: nil, HeaderAttempts: nil}, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := k.deliveryOf(amqp.Delivery{Headers: tc.headers})
			var due int64
			if !d.DueAt.IsZero() {
				due = d.DueAt.UnixMilli()
			}
			if due != tc.due || d.Attempt != tc.attempt || d.Version != tc.version || d.MaxAttempts != 5 {
				t.Fatalf("got due %d, attempt %d, version %d, max %d; want %+v", due, d.Attempt, d.Version, d.MaxAttempts, tc)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(int64(0), int64(0), "", []byte(nil))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), "x", []byte("y"))
	k := testConsumer(f, nil)
	f.Fuzz(func(t *testing.T, due, attempt int64, s string, b []byte) {
		raw := amqp.Delivery{MessageId: s, Body: b, Headers: amqp.Table{
			HeaderDue: due, HeaderAttempt: attempt, HeaderAttempts: []any{s, b, due, nil}, HeaderError: b, s: s,
		}}
		d := k.deliveryOf(raw)
		if d.Attempt < 1 {
			t.Fatalf("attempt %d", d.Attempt)
		}
		// Whatever came can be passed on.
		for _, ask := range []ask{askRetry, askSnooze, askBury, askReturn} {
			m := k.successor(d, ownVerdict(ask, "", errTest)).Message
			m.Headers = nil
			if _, err := k.c.prepare(&m, straightTo(topology.Destination{Queue: "dead"}), time.Now()); err != nil && len(s) <= 255 {
				t.Fatalf("cannot be passed on: %v", err)
			}
		}
	})
}

// A retry's delay is one that the strategy has.
func TestRetryDelaysFitTheStrategy(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{5 * time.Second, time.Minute}})
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
		{nil, 7 * time.Second, 7 * time.Second},
		{nil, offline(t, nil).MaxDelay(), math.MaxInt64},
	} {
		k := testConsumer(t, tc.s)
		if got := k.possible(tc.from); got != tc.want {
			t.Errorf("%s: possible(%v) = %v, want %v", k.c.strategy.Name(), tc.from, got, tc.want)
		}
		if _, err := k.c.strategy.Route(topology.Destination{Queue: "q"}, k.possible(tc.from), 0); err != nil {
			t.Errorf("%s: %v", k.c.strategy.Name(), err)
		}
	}
}

// What was due at 0, which means immediately, is due since its task was written or, without one, since it was sent.
func TestDueSince(t *testing.T) {
	due, created, sent := time.UnixMilli(1_800_000_000_000), time.UnixMilli(1_800_000_001_000), time.UnixMilli(1_800_000_002_000)
	for name, x := range map[string]struct {
		d    Delivery
		want time.Time
	}{
		"an instant":        {Delivery{DueAt: due, Created: created, Timestamp: sent}, due},
		"no instant":        {Delivery{Created: created, Timestamp: sent}, time.Time{}},
		"a task at once":    {Delivery{DueAt: time.UnixMilli(0), Created: created, Timestamp: sent}, created},
		"a message at once": {Delivery{DueAt: time.UnixMilli(0), Timestamp: sent}, sent},
	} {
		if got := x.d.DueSince(); !got.Equal(x.want) {
			t.Errorf("%s: %v, expected %v", name, got, x.want)
		}
	}
}
