package guard

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitEnd waits until a child process has ended. It does not reap the process, so its process ID remains reserved
// until the caller calls wait.
func awaitEnd(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
