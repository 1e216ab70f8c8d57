package snapshot

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// reading is one look at the broker's clock: it showed a time between Earliest
// and Latest at some instant between Sent and Received of this process's clock.
type reading struct {
	sent, received   time.Time
	earliest, latest time.Time
}

// Readings of the ways to look.
func dateReading(sent, received, date time.Time) reading {
	// Whole seconds, and the HTTP server renews its text of the time only once a
	// second.
	return reading{sent, received, date, date.Add(2 * time.Second)}
}

func deathReading(sent, received, death time.Time) reading {
	return reading{sent, received, death, death.Add(time.Second)} // whole seconds
}

func connectedReading(sent, received time.Time, epochMilli int64) reading {
	at := time.UnixMilli(epochMilli)
	return reading{sent, received, at, at.Add(time.Millisecond)}
}

// bounds are what one reading says about the difference between the clocks.
func (r reading) bounds() (low, high time.Duration) {
	return r.earliest.Sub(r.received), r.latest.Sub(r.sent)
}

// narrow combines readings: the difference satisfies all of them. Whole seconds
// become milliseconds in this way, because among many readings some lie just
// before and some just after the second's end. It fails where the readings
// contradict each other, because a clock was set meanwhile.
func narrow(readings []reading) (low, high time.Duration, ok bool) {
	for i, r := range readings {
		l, h := r.bounds()
		if i == 0 || l > low {
			low = l
		}
		if i == 0 || h < high {
			high = h
		}
	}
	return low, high, len(readings) > 0 && low <= high
}

// estimate is the best of several ways to measure, by name.
func estimate(ways map[string][]reading) *doctor.Clock {
	var best *doctor.Clock
	for _, method := range []string{methodDeath, methodConnected, methodDate} {
		low, high, ok := narrow(ways[method])
		if ok && (best == nil || high-low < best.High-best.Low) {
			best = &doctor.Clock{Low: low, High: high, Method: method}
		}
	}
	return best
}

const (
	methodDeath     = "x-death of expired messages"
	methodConnected = "connected_at of the management API"
	methodDate      = "Date of the management API"
)
