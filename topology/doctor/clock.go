package doctor

import (
	"fmt"
	"time"
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
func estimate(ways map[string][]reading) *Clock {
	var best *Clock
	for _, method := range []string{methodDeath, methodConnected, methodDate} {
		low, high, ok := narrow(ways[method])
		if ok && (best == nil || high-low < best.High-best.Low) {
			best = &Clock{Low: low, High: high, Method: method}
		}
	}
	return best
}

const (
	methodDeath     = "x-death of expired messages"
	methodConnected = "connected_at of the management API"
	methodDate      = "Date of the management API"
)

func (x *examination) checkClock() {
	c := x.snap.Clock
	if c == nil {
		x.unseenf(AreaClock, "the clocks were not compared; it needs the permission to use exclusive queues (amq.gen-…) and the default exchange, or the management API")
		return
	}
	direction := "ahead of"
	difference := c.Difference()
	if difference < 0 {
		direction, difference = "behind", -difference
	}
	certain := c.Low > x.cfg.ClockTolerance || c.High < -x.cfg.ClockTolerance
	if !certain {
		return
	}
	x.found(Finding{
		ID: "clock-difference", Severity: Warning,
		What: fmt.Sprintf("The broker's clock is %v %s this machine's (±%v).", roughly(difference), direction, roughly(c.Resolution())),
		Why: "A delay is measured by the broker, but an instant (DeliverAt, --at, a task's due time) is turned into a delay by the sender's clock: " +
			"messages come too early or too late by that much, and the lateness that consumers report is wrong.",
		Mend: "timedatectl set-ntp true   # or chronyc makestep, on the machine whose clock is wrong",
	})
}

func roughly(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	default:
		return d.Round(100 * time.Microsecond)
	}
}

func (x *examination) notef(format string, args ...any) {
	x.rep.Notes = append(x.rep.Notes, fmt.Sprintf(format, args...))
}
