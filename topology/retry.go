package topology

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Retry is what consumers of a destination do with a message whose handler has
// failed: it is delivered again after a growing delay, until MaxAttempts are used
// up. A field that is 0 means its default.
type Retry struct {
	MaxAttempts int           // deliveries in all, the first one included; default 5, 1 to 1,000,000
	Immediate   int           // further runs of the handler at once, in each attempt that fails; default 0, up to 100
	Backoff     time.Duration // delay before the second attempt; default 1s, from 1ms
	MaxBackoff  time.Duration // bound of the exponential growth; default 10m, or Backoff if that is longer
	Multiplier  float64       // growth per attempt; default 2, 1 to 1000
	Jitter      float64       // share of the delay that is random, up to 1; default 0.2, NoJitter for none
}

// NoJitter as a Retry's Jitter switches jitter off; in YAML write "jitter: 0".
// The field's zero value means the default, 0.2.
const NoJitter = -1

const (
	maxAttempts   = 1_000_000
	maxImmediate  = 100
	maxMultiplier = 1000
)

// WithDefaults fills in what is not set.
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

// Validate checks the policy after WithDefaults. Each wrong field is a *FieldError
// in the joined error.
func (r Retry) Validate() error {
	r = r.WithDefaults()
	var errs []error
	want := func(ok bool, field string, value any, bound string) {
		if !ok {
			errs = append(errs, &FieldError{Of: "retry", Field: field, Value: value, Want: bound})
		}
	}
	want(r.MaxAttempts >= 1 && r.MaxAttempts <= maxAttempts, "MaxAttempts", r.MaxAttempts, fmt.Sprintf("1 to %d", maxAttempts))
	want(r.Immediate >= 0 && r.Immediate <= maxImmediate, "Immediate", r.Immediate, fmt.Sprintf("0 to %d", maxImmediate))
	want(r.Backoff >= time.Millisecond && r.Backoff <= MaxTTL, "Backoff", r.Backoff, "1ms to "+FormatDuration(MaxTTL))
	want(r.MaxBackoff >= r.Backoff && r.MaxBackoff <= MaxTTL, "MaxBackoff", r.MaxBackoff,
		FormatDuration(r.Backoff)+" (Backoff) to "+FormatDuration(MaxTTL))
	// The comparisons are false for NaN.
	want(r.Multiplier >= 1 && r.Multiplier <= maxMultiplier, "Multiplier", r.Multiplier, fmt.Sprintf("1 to %d", maxMultiplier))
	want(r.Jitter <= 1, "Jitter", r.Jitter, "0 to 1")
	return errors.Join(errs...)
}

// Delay returns how long a message waits for its next delivery after the given attempt
// (1 is the first delivery) failed, of a valid policy with its defaults. rnd is a
// random number from 0 to 1; the delay grows with it from (1-Jitter) of the
// exponential value to all of it. The result never exceeds MaxBackoff.
func (r Retry) Delay(attempt int, rnd float64) time.Duration {
	d := float64(r.Backoff) * math.Pow(r.Multiplier, float64(max(attempt, 1)-1))
	if limit := float64(r.MaxBackoff); !(d < limit) { // +Inf too
		d = limit
	}
	if !(rnd > 0) { // NaN too
		rnd = 0
	}
	d *= 1 - max(r.Jitter, 0)*(1-min(rnd, 1))
	return min(time.Duration(d), r.MaxBackoff)
}
