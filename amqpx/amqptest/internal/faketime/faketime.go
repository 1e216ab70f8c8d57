// Package faketime detects the virtual time of testing/synctest. Code that polls, or that depends on the clock of
// another program, has to behave differently in virtual time.
package faketime

import "time"

// apart is the minimum difference between a bubble's clock, which starts in the year 2000, and the system's clock.
const apart = time.Hour

// Inside reports whether the caller runs in a testing/synctest bubble, where the clock differs from the system's.
func Inside() bool {
	system, ok := systemTime()
	return ok && time.Until(system).Abs() > apart
}
