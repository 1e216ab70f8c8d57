package dlx

import (
	"strconv"
	"time"
)

const day = 24 * time.Hour

// durationName writes a whole number of milliseconds as one topic word: 10ms,
// 30m, 1d, 1m4s. Different durations have different names.
func durationName(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	var b []byte
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			b = strconv.AppendInt(b, int64(n), 10)
			b = append(b, u.name...)
			d %= u.unit
		}
	}
	return string(b)
}
