package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

func (x *examination) checkClock() {
	switch {
	case len(x.snap.Clocks) > 0:
	case x.snap.Blocked != "":
		x.uncheckedf(AreaClock, "the clocks were not compared, because that sends messages, and the broker blocks connections that publish (%s)", x.snap.Blocked)
		return
	default:
		x.uncheckedf(AreaClock, "the clocks were not compared; comparing them needs the permission to use exclusive queues (amq.gen-…) and the default exchange, or the management API")
		return
	}
	var off []Clock
	var names []string
	for _, c := range x.snap.Clocks {
		if c.certainly(Clock{}, x.cfg.ClockTolerance) {
			off = append(off, c)
			if c.Node != "" {
				names = append(names, c.Node)
			}
		}
	}
	if len(off) > 0 {
		x.ownClock(off, names)
	}
	// All nodes' clocks were compared with this machine's clock, so an error of this clock cancels out.
	low, high := apart(x.snap.Clocks)
	if !high.certainly(low, x.cfg.ClockTolerance) {
		return
	}
	x.found(Finding{ID: "node-clocks", Severity: SeverityWarning, Objects: astray(x.snap.Clocks, x.cfg.ClockTolerance),
		What: fmt.Sprintf("The nodes' clocks are up to %v apart. Compared with this machine's clock: %s.", roughly(high.Difference()-low.Difference()), figures(x.snap.Clocks)),
		Why: "A quorum queue stores the time at which a message expires according to its leader's clock. After a change of leader, for example because a node was restarted or lost, " +
			"messages arrive early or late by the difference, and again at each further hop. rabbitdelay's consumers hold early messages, or send them back for the remaining time. Other consumers handle them early.",
		Fix: "timedatectl set-ntp true   # or chronyc makestep, on the nodes whose clocks are wrong; setting a clock back makes the messages that wait there late by the same amount, once",
	})
}

func (x *examination) ownClock(off []Clock, names []string) {
	whose := "The broker's"
	if off[0].Node != "" {
		whose = off[0].Node + "'s"
	}
	f := Finding{ID: "clock-difference", Severity: SeverityWarning, Objects: names,
		What: fmt.Sprintf("%s clock is %s this machine's clock (±%v).", whose, off[0].ahead(), roughly(off[0].Resolution())),
		Why: "The broker measures delays, but the sender's clock converts a due time (DeliverAt, --at, a task's due time) to a delay. " +
			"Messages arrive too early or too late by the difference, and the lateness that consumers report is wrong.",
		Fix: "timedatectl set-ntp true   # or chronyc makestep, on the machine whose clock is wrong",
	}
	if len(off) > 1 {
		f.What = fmt.Sprintf("The clocks of %s differ from this machine's: %s.", shown.Count(len(off), "node", "nodes"), figures(off))
		if low, high := apart(off); len(off) == len(x.snap.Clocks) && !high.certainly(low, x.cfg.ClockTolerance) {
			f.Fix = "timedatectl set-ntp true   # or chronyc makestep, on this machine, because the nodes agree with each other"
		}
	}
	x.found(f)
}

// apart returns the clock that is furthest behind and the clock that is furthest ahead.
func apart(clocks []Clock) (low, high Clock) {
	byDifference := func(a, b Clock) int { return cmp.Compare(a.Difference(), b.Difference()) }
	return slices.MinFunc(clocks, byDifference), slices.MaxFunc(clocks, byDifference)
}

// astray returns the nodes whose clocks differ from the majority's. If there is no clear majority, it returns the two
// nodes that are furthest apart.
func astray(clocks []Clock, tolerance time.Duration) []string {
	sorted := slices.SortedFunc(slices.Values(clocks), func(a, b Clock) int { return cmp.Compare(a.Difference(), b.Difference()) })
	middle, low, high := sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1]
	var wrong, ends []string
	for _, c := range clocks {
		if len(clocks) > 2 && c.certainly(middle, tolerance) {
			wrong = append(wrong, c.Node)
		}
		if c == low || c == high {
			ends = append(ends, c.Node)
		}
	}
	if len(wrong) == 0 {
		return ends
	}
	return wrong
}

// certainly reports whether two clocks differ by more than the tolerance, even if both readings are as inaccurate as
// they can be.
func (c Clock) certainly(other Clock, tolerance time.Duration) bool {
	return c.Low-other.High > tolerance || other.Low-c.High > tolerance
}

// figures formats clocks, e.g. "rabbit@a 2ms behind (±1ms), rabbit@b 30s ahead (±1ms)".
func figures(clocks []Clock) string {
	return strings.Join(texts(clocks, func(c Clock) string {
		return fmt.Sprintf("%s %s (±%v)", c.Node, strings.TrimSuffix(c.ahead(), " of"), roughly(c.Resolution()))
	}), ", ")
}
