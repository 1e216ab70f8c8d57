package topology

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Retry is the policy of a destination's consumers for retrying a message after its handler has failed. The message is
// delivered again after a growing delay, until it has been delivered MaxAttempts times. A field that is 0 has its
// default.
type Retry struct {
	MaxAttempts      int           // total number of deliveries, including the first one; default 5, 1 to 1,000,000
	ImmediateRetries int           // additional immediate runs of the handler in each failed attempt; default 0, up to 100
	Backoff          time.Duration // delay before the second attempt; default 1s, from 1ms
	MaxBackoff       time.Duration // upper limit of the exponential growth; default 10m, or Backoff if that is longer
	Multiplier       float64       // growth per attempt; default 2, 1 to 1000
	Jitter           float64       // random share of the delay, up to 1; default 0.2, NoJitter for none
}

// NoJitter disables a Retry's jitter. In YAML write "jitter: 0". The field's zero value means the default, 0.2.
const NoJitter = -1

const (
	maxAttempts   = 1_000_000
	maxImmediate  = 100
	maxMultiplier = 1000
)

// WithDefaults returns the policy with defaults for all unset fields.
func (r Retry) WithDefaults() Retry {
	if r.MaxAttempts == 0 {
		r.MaxAttempts = 5
	}
	if r.Backoff == 0 {
		r.Backoff = time.Second
		if r.MaxBackoff > 0 {
			r.Backoff = min(r.Backoff, r.MaxBackoff)
		}
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = max(10*time.Minute, r.Backoff)
	}
	if r.Multiplier == 0 {
		r.Multiplier = 2
	}
	switch {
	case r.Jitter == 0:
		r.Jitter = 0.2
	case r.Jitter < 0:
		r.Jitter = NoJitter
	}
	return r
}

// Validate checks the policy after applying WithDefaults. The error joins a *FieldError for each invalid field.
func (r Retry) Validate() error {
	r = r.WithDefaults()
	var errs []error
	want := func(ok bool, field string, value any, bound string) {
		if !ok {
			errs = append(errs, &FieldError{Of: "retry", Field: field, Value: value, Want: bound})
		}
	}
	want(r.MaxAttempts >= 1 && r.MaxAttempts <= maxAttempts, "MaxAttempts", r.MaxAttempts, fmt.Sprintf("1 to %d", maxAttempts))
	want(r.ImmediateRetries >= 0 && r.ImmediateRetries <= maxImmediate, "ImmediateRetries", r.ImmediateRetries, fmt.Sprintf("0 to %d", maxImmediate))
	want(r.Backoff >= time.Millisecond && r.Backoff <= MaxTTL, "Backoff", r.Backoff, "1ms to "+FormatDuration(MaxTTL))
	want(r.MaxBackoff >= r.Backoff && r.MaxBackoff <= MaxTTL, "MaxBackoff", r.MaxBackoff,
		FormatDuration(r.Backoff)+" (Backoff) to "+FormatDuration(MaxTTL))
	// The comparisons are false for NaN, so NaN is rejected too.
	want(r.Multiplier >= 1 && r.Multiplier <= maxMultiplier, "Multiplier", r.Multiplier, fmt.Sprintf("1 to %d", maxMultiplier))
	want(r.Jitter <= 1, "Jitter", r.Jitter, "0 to 1")
	return errors.Join(errs...)
}

// Delay returns how long a message waits for its next delivery after the given attempt has failed. Attempt 1 is the
// first delivery. The policy must be valid and have its defaults. The parameter rnd is a random number from 0 to 1.
// As rnd grows, the delay grows from (1-Jitter) of the exponential value to the full value. The result never exceeds
// MaxBackoff.
func (r Retry) Delay(attempt int, rnd float64) time.Duration {
	d := float64(r.Backoff) * math.Pow(r.Multiplier, float64(max(attempt, 1)-1))
	if limit := float64(r.MaxBackoff); !(d < limit) { // also for +Inf
		d = limit
	}
	if !(rnd > 0) { // also for NaN
		rnd = 0
	}
	d *= 1 - max(r.Jitter, 0)*(1-min(rnd, 1))
	return min(time.Duration(d), r.MaxBackoff)
}
