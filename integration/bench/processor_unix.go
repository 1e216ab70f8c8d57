//go:build unix

package bench

import (
	"syscall"
	"time"
)

// ownProcessor is the processor time of this process.
func ownProcessor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
