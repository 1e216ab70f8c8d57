package guard

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitEnd waits until a child has ended, and leaves it its number: wait gives that
// back.
func awaitEnd(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
