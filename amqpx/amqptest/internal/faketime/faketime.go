// Package faketime detects the virtual time of testing/synctest. Code that polls, or that depends on the clock of
// another program, has to behave differently in virtual time.
package faketime

import "time"

// apart is the difference between Go's clock and the system's clock above which Inside assumes a bubble. A bubble's
// clock starts in the year 2000.
const apart = time.Hour

// Inside reports whether the caller runs in a testing/synctest bubble, where the clock differs from the system's.
func Inside() bool {
	system, ok := systemTime()
	return ok && time.Until(system).Abs() > apart
}
