package faketime

import (
	"syscall"
	"time"
)

// systemTime returns the time of the operating system's clock.
func systemTime() (time.Time, bool) {
	var t syscall.Filetime
	syscall.GetSystemTimeAsFileTime(&t)
	return time.Unix(0, t.Nanoseconds()), true
}
