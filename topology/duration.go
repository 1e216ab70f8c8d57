package topology

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads a duration in Go's syntax, with days of 24 hours before
// it if any: "1500ms", "30m", "1h30m", "7d", "1d12h". A bare "0" needs no unit.
func ParseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	var days time.Duration
	if number, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.ContainsAny(number, "eExXpPnNiI_+-") {
			return 0, durationError(s)
		}
		if n*float64(24*time.Hour) >= math.MaxInt64 {
			return 0, fmt.Errorf("%q is longer than a duration can be", s)
		}
		days, rest = time.Duration(n*float64(24*time.Hour)), after
		if rest == "" {
			rest = "0"
		} else if rest[0] == '-' || rest[0] == '+' {
			return 0, durationError(s)
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || strings.HasPrefix(rest, "-") {
		return 0, durationError(s)
	}
	if d > math.MaxInt64-days {
		return 0, fmt.Errorf("%q is longer than a duration can be", s)
	}
	d += days
	if negative {
		d = -d
	}
	return d, nil
}

func durationError(s string) error {
	return fmt.Errorf("expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got %q", clip(s))
}
