package topology

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// MaxTTL is the largest x-message-ttl and x-expires that a broker accepts: ten years of 365 days, since RabbitMQ
// 3.10.2.
const MaxTTL = 315_360_000_000 * time.Millisecond

// longUnits are the units that Go's syntax does not have, longest first.
var longUnits = []struct {
	name string
	unit time.Duration
}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}}

// ParseDuration parses a duration in Go's syntax, optionally preceded by weeks of 7 days and days of 24 hours:
// "1500ms", "30m", "1h30m", "7d", "1d12h", "2w". A plain "0" needs no unit.
func ParseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	var sum time.Duration
	for _, u := range longUnits {
		number, after, ok := strings.Cut(rest, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.ContainsAny(number, "eExXpPnNiI_+-") || after != "" && (after[0] == '-' || after[0] == '+') {
			return 0, durationError(s)
		}
		if n*float64(u.unit) >= float64(math.MaxInt64-sum) {
			return 0, fmt.Errorf("%q exceeds the longest possible duration (about 292 years)", s)
		}
		sum += time.Duration(n * float64(u.unit))
		if rest = after; rest == "" {
			rest = "0"
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || strings.HasPrefix(rest, "-") {
		return 0, durationError(s)
	}
	if d > math.MaxInt64-sum {
		return 0, fmt.Errorf("%q exceeds the longest possible duration (about 292 years)", s)
	}
	if sum += d; negative {
		sum = -sum
	}
	return sum, nil
}

func durationError(s string) error {
	return fmt.Errorf("expected a duration such as 1500ms, 60s, 30m, 48h or 7d, got %q", yamldoc.Clip(s))
}

// FormatDuration formats a duration in human-readable form, with days of 24 hours and without parts that are zero:
// "30m", "1h30m", "383d23h59m59.9s". ParseDuration accepts the result.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d < 0 {
		if d == math.MinInt64 { // it cannot be negated
			d++
		}
		return "-" + FormatDuration(-d)
	}
	days, rest := "", d%day
	if d >= day {
		days = strconv.FormatInt(int64(d/day), 10) + "d"
		if rest == 0 {
			return days
		}
	}
	text := rest.String()
	if rest >= time.Minute {
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		if strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
		text = strings.Replace(text, "h0m", "h", 1)
	}
	return days + text
}
