//go:build !unix && !windows

package faketime

import "time"

// systemTime reports that the system's time is unknown, so no bubble is detected.
func systemTime() (time.Time, bool) { return time.Time{}, false }
