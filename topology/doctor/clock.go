package doctor

import (
	"fmt"
	"time"
)

func (x *examination) checkClock() {
	c := x.snap.Clock
	if c == nil {
		x.unseenf(AreaClock, "the clocks were not compared; that needs the permission to use exclusive queues (amq.gen-…) and the default exchange, or the management API")
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
		ID: "clock-difference", Severity: SeverityWarning,
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
