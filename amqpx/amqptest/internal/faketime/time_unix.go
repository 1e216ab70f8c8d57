//go:build unix

package faketime

import (
	"syscall"
	"time"
)

// systemTime returns the time of the operating system's clock.
func systemTime() (time.Time, bool) {
	var t syscall.Timeval
	err := syscall.Gettimeofday(&t)
	return time.Unix(t.Unix()), err == nil
}
