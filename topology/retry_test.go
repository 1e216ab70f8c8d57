package topology_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestRetryDefaults(t *testing.T) {
	p := topology.Retry{}.WithDefaults()
	want := topology.Retry{MaxAttempts: 5, Backoff: time.Second, MaxBackoff: 10 * time.Minute, Multiplier: 2, Jitter: 0.2}
	if err := p.Validate(); p != want || err != nil {
		t.Errorf("Retry{}.WithDefaults, then Validate: got %+v, %v, want %+v and no error", p, err, want)
	}
	for _, c := range []struct {
		attempt int
		rnd     float64
		want    time.Duration
	}{
		{1, 1, time.Second},
		{1, 0, 800 * time.Millisecond},
		{1, 0.5, 900 * time.Millisecond},
		{2, 1, 2 * time.Second},
		{3, 1, 4 * time.Second},
		{10, 1, 512 * time.Second},
		{11, 1, 10 * time.Minute},
		{11, 0, 8 * time.Minute},
		{math.MaxInt, 1, 10 * time.Minute},
		{0, 1, time.Second},
		{math.MinInt, 1, time.Second},
		{1, 7, time.Second},
		{1, -7, 800 * time.Millisecond},
		{1, math.NaN(), 800 * time.Millisecond},
	} {
		if got := p.Delay(c.attempt, c.rnd); got != c.want {
			t.Errorf("Delay(%d, %v) = %v, want %v", c.attempt, c.rnd, got, c.want)
		}
	}
}

func TestRetryErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		retry  topology.Retry
		fields string
	}{
		{"long back-off", topology.Retry{Backoff: time.Hour}, ""},
		{"short bound", topology.Retry{MaxBackoff: 10 * time.Millisecond}, ""},
		{"no jitter", topology.Retry{Jitter: -1}, ""},
		{"constant", topology.Retry{Multiplier: 1, MaxAttempts: 1, Jitter: 1}, ""},
		{"attempts", topology.Retry{MaxAttempts: -1}, "MaxAttempts"},
		{"back-off", topology.Retry{Backoff: -time.Second}, "Backoff"},
		{"tiny back-off", topology.Retry{Backoff: time.Microsecond}, "Backoff"},
		{"bound below", topology.Retry{Backoff: time.Minute, MaxBackoff: time.Second}, "MaxBackoff"},
		{"bound negative", topology.Retry{MaxBackoff: -1}, "MaxBackoff"},
		{"bound over", topology.Retry{MaxBackoff: math.MaxInt64}, "MaxBackoff"},
		{"multiplier", topology.Retry{Multiplier: 0.5}, "Multiplier"},
		{"multiplier NaN", topology.Retry{Multiplier: math.NaN()}, "Multiplier"},
		{"multiplier infinite", topology.Retry{Multiplier: math.Inf(1)}, "Multiplier"},
		{"jitter", topology.Retry{Jitter: 1.1}, "Jitter"},
		{"jitter NaN", topology.Retry{Jitter: math.NaN()}, "Jitter"},
		{"several", topology.Retry{MaxAttempts: -2, Jitter: 2}, "MaxAttempts Jitter"},
	} {
		err := c.retry.Validate()
		var got []string
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				if f, ok := errors.AsType[*topology.FieldError](e); ok && f.Of == "retry" {
					got = append(got, f.Field)
				}
			}
		}
		if strings.Join(got, " ") != c.fields || (err != nil) != (c.fields != "") {
			t.Errorf("%s: Validate returned %v, which names the fields %q, want the fields %q", c.name, err, strings.Join(got, " "), c.fields)
		}
	}
}

func TestRetryProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backoff := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(topology.MaxTTL)).Draw(t, "backoff"))
		bound := time.Duration(rapid.Int64Range(int64(backoff), int64(topology.MaxTTL)).Draw(t, "bound"))
		jitter := rapid.Float64Range(0.001, 1).Draw(t, "jitter")
		policy := func(j float64) topology.Retry {
			r := topology.Retry{
				Backoff: backoff, MaxBackoff: bound, Jitter: j,
				Multiplier: rapid.Float64Range(1, 1000).Draw(t, "multiplier"),
			}
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			return r.WithDefaults()
		}
		steady := policy(-1)
		attempt := rapid.IntRange(1, 200).Draw(t, "attempt")
		rnd := rapid.Float64Range(0, 1).Draw(t, "rnd")
		least := backoff - backoff>>50 - 1 // a float64 cannot distinguish longer durations
		now, next := steady.Delay(attempt, rnd), steady.Delay(attempt+1, rnd)
		if now < least || now > bound || next < now {
			t.Fatalf("Delay: got %v and %v for attempts %d and %d, want the first from %v to %v and the second no shorter",
				now, next, attempt, attempt+1, least, bound)
		}
		if far := steady.Delay(attempt+rapid.Int().Draw(t, "more")>>1, rnd); far > bound || far < least {
			t.Fatalf("Delay: got %v for an attempt after %d, want %v to %v", far, attempt, least, bound)
		}
		p := policy(jitter)
		low, mid, high := p.Delay(attempt, 0), p.Delay(attempt, rnd), p.Delay(attempt, 1)
		if low < 0 || low > mid || mid > high || high > bound || float64(low) < float64(high)*(1-jitter)*(1-1e-9)-1 {
			t.Fatalf("jitter %v: got delays %v, %v, %v, want them in ascending order, the first at least 0 and %v, the last at most %v",
				jitter, low, mid, high, time.Duration(float64(high)*(1-jitter)*(1-1e-9)-1), bound)
		}
	})
}
