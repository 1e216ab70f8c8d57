package bridge

import (
	"errors"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The cases follow the plugin's source (rabbit_delayed_message_utils).
func TestDelay(t *testing.T) {
	for _, c := range []struct {
		value any
		want  time.Duration
		err   bool
	}{
		{nil, 0, false},
		{int8(5), 5 * time.Millisecond, false},
		{uint8(200), 200 * time.Millisecond, false},
		{int16(5), 5 * time.Millisecond, false},
		{uint16(5), 5 * time.Millisecond, false},
		{int32(5000), 5 * time.Second, false},
		{uint32(math.MaxUint32), MaxDelay, false},
		{int64(math.MaxUint32), MaxDelay, false},
		{int64(math.MaxUint32 + 1), 0, false},
		{int64(math.MaxInt64), 0, false},
		{int64(math.MinInt64), 0, false},
		{int32(0), 0, false},
		{int32(-5000), 0, false},
		{float64(1.9), time.Millisecond, false},
		{float64(0.9), 0, false},
		{float64(-3), 0, false},
		{float64(math.MaxUint32) + 0.9, MaxDelay, false},
		{float64(1e300), 0, false},
		{math.NaN(), 0, false},
		{math.Inf(1), 0, false},
		{float32(2500), 2500 * time.Millisecond, false},
		{"1500", 1500 * time.Millisecond, false},
		{"+1500", 1500 * time.Millisecond, false},
		{"-1500", 0, false},
		{[]byte("1500"), 1500 * time.Millisecond, false},
		{"99999999999999999999", 0, false},
		{"4294967296", 0, false},
		{"soon", 0, true},
		{"", 0, true},
		{" 5", 0, true},
		{"1.5", 0, true},
		{true, 0, false},
		{amqp.Decimal{Scale: 0, Value: 5}, 0, false},
		{[]any{int32(5)}, 0, false},
	} {
		got, err := Delay(amqp.Table{Header: c.value})
		if got != c.want || (err != nil) != c.err || err != nil && !errors.Is(err, ErrDelay) {
			t.Errorf("Delay with the header %T %v: got %v (error %v), want %v and an error: %t", c.value, c.value, got, err, c.want, c.err)
		}
	}
}

// For any x-delay within the plugin's bounds, Delay returns the requested delay. For other values, it returns a delay
// from 0 to MaxDelay, or 0 and an error.
func FuzzDelay(f *testing.F) {
	f.Add("0", int64(0), 0.0)
	f.Add("4294967295", int64(math.MaxUint32), 4294967295.9)
	f.Fuzz(func(t *testing.T, s string, n int64, x float64) {
		for _, v := range []any{s, []byte(s), n, x} {
			d, err := Delay(amqp.Table{Header: v})
			if d < 0 || d > MaxDelay || err != nil && d != 0 {
				t.Fatalf("header %v: got the delay %v (error %v), want 0 to MaxDelay, and 0 with an error", v, d, err)
			}
		}
		if d, _ := Delay(amqp.Table{Header: n}); n > 0 && n <= math.MaxUint32 && d.Milliseconds() != n {
			t.Fatalf("header %d: got the delay %v, want the same number of ms", n, d)
		}
	})
}
