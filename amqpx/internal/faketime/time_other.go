//go:build !unix && !windows

package faketime

import "time"

// systemTime is unknown, and no bubble recognised.
func systemTime() (time.Time, bool) { return time.Time{}, false }
