package dlx

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Defaults of a retry policy.
const (
	DefaultMaxAttempts = 5
	DefaultBackoff     = time.Second
	DefaultMaxBackoff  = 10 * time.Minute
	DefaultMultiplier  = 2.0
	DefaultJitter      = 0.2
)

const (
	maxAttempts   = 1_000_000
	maxMultiplier = 1000
)

// RetryPolicy turns the attempts of a message into delays. Its zero value is not
// useful; make it with NewRetryPolicy.
type RetryPolicy struct{ retry topology.Retry }

// NewRetryPolicy fills in what is not set in r and checks it. Defaults: 5
// attempts in all, 1s before the second, doubled each time, at most 10m (or
// Backoff, if that is longer), a fifth of each delay random. A negative Jitter
// (topology.NoJitter) means none, as 0 means the default.
//
// Each wrong field is a *topology.FieldError in the joined error.
func NewRetryPolicy(r topology.Retry) (RetryPolicy, error) {
	if r.MaxAttempts == 0 {
		r.MaxAttempts = DefaultMaxAttempts
	}
	if r.Backoff == 0 {
		r.Backoff = DefaultBackoff
		if r.MaxBackoff > 0 {
			r.Backoff = min(r.Backoff, r.MaxBackoff)
		}
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = max(DefaultMaxBackoff, r.Backoff)
	}
	if r.Multiplier == 0 {
		r.Multiplier = DefaultMultiplier
	}
	switch {
	case r.Jitter == 0:
		r.Jitter = DefaultJitter
	case r.Jitter < 0:
		r.Jitter = 0
	}
	return RetryPolicy{r}, checkRetry(r)
}

func checkRetry(r topology.Retry) error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, &topology.FieldError{Of: "retry", Field: field, Value: value, Want: want})
		}
	}
	check(r.MaxAttempts >= 1 && r.MaxAttempts <= maxAttempts, "MaxAttempts", r.MaxAttempts, fmt.Sprintf("1 to %d", maxAttempts))
	check(r.Backoff >= time.Millisecond && r.Backoff <= topology.MaxTTL, "Backoff", r.Backoff, "1ms to "+topology.FormatDuration(topology.MaxTTL))
	check(r.MaxBackoff >= r.Backoff && r.MaxBackoff <= topology.MaxTTL, "MaxBackoff", r.MaxBackoff,
		topology.FormatDuration(r.Backoff)+" (Backoff) to "+topology.FormatDuration(topology.MaxTTL))
	// The comparisons are false for NaN.
	check(r.Multiplier >= 1 && r.Multiplier <= maxMultiplier, "Multiplier", r.Multiplier, fmt.Sprintf("1 to %d", maxMultiplier))
	check(r.Jitter >= 0 && r.Jitter <= 1, "Jitter", r.Jitter, "0 to 1, or negative for none")
	return errors.Join(errs...)
}

// Retry is the policy with its defaults filled in; its Jitter may be 0.
func (p RetryPolicy) Retry() topology.Retry { return p.retry }

// MaxAttempts is the number of deliveries, the first one included, after which
// a failing message is dead-lettered.
func (p RetryPolicy) MaxAttempts() int { return p.retry.MaxAttempts }

// Backoff is how long a message waits for its next delivery after the given
// attempt (1 is the first delivery) failed. rnd is a random number from 0 to 1;
// the delay grows with it from (1-Jitter) of the exponential value to all of it.
// The result never exceeds MaxBackoff.
func (p RetryPolicy) Backoff(attempt int, rnd float64) time.Duration {
	r := p.retry
	d := float64(r.Backoff) * math.Pow(r.Multiplier, float64(max(attempt, 1)-1))
	if limit := float64(r.MaxBackoff); !(d < limit) { // +Inf too
		d = limit
	}
	if !(rnd > 0) { // NaN too
		rnd = 0
	}
	d *= 1 - r.Jitter*(1-min(rnd, 1))
	return min(time.Duration(d), r.MaxBackoff)
}
