// Package faketime recognises the virtual time of testing/synctest, in which what asks
// again and again, or goes by another program's clock, has to behave differently.
package faketime

import "time"

// apart is by how much a bubble's clock differs from the system's at least. It begins in
// the year 2000.
const apart = time.Hour

// Inside reports whether the caller runs in a testing/synctest bubble: its clock is not
// the system's.
func Inside() bool {
	system, ok := systemTime()
	return ok && time.Until(system).Abs() > apart
}
