// Package units detects times and durations whose number was given in the wrong unit, such as seconds that were read as
// milliseconds.
package units

import (
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The range of plausible times, in seconds: from 2001 to the year 5138. Times outside of it are probably milliseconds
// that were read as seconds, or the reverse. In milliseconds, these bounds are also the bounds of the tasks table.
const (
	firstSecond = 1_000_000_000
	lastSecond  = 100_000_000_000
)

// Instant returns why t is probably not the intended time, and which time may have been intended. It returns "" if t is
// plausible. The Unix epoch itself is plausible, because it is a due time that means immediately.
func Instant(t time.Time) string {
	s := t.Unix()
	seconds := func(n int64, unit string) string {
		return fmt.Sprintf("%s, which looks like seconds that were read as %s; was %s meant, time.Unix(%d, 0) in Go?",
			written(t), unit, written(time.Unix(n, 0)), n)
	}
	switch {
	case s < lastSecond/1000 && s >= firstSecond/1000:
		return seconds(t.UnixMilli(), "milliseconds")
	case s < lastSecond/1_000_000 && s >= firstSecond/1_000_000:
		return seconds(t.UnixMicro(), "microseconds")
	case s < lastSecond/1_000_000_000 && s >= firstSecond/1_000_000_000:
		return seconds(t.UnixNano(), "nanoseconds")
	case s >= firstSecond*1000 && s < lastSecond*1000:
		return fmt.Sprintf("the year %d, which looks like milliseconds that were read as seconds; was %s meant, time.UnixMilli(%d) in Go?",
			t.UTC().Year(), written(time.UnixMilli(s)), s)
	}
	return ""
}

func written(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Duration returns why d is probably not the intended duration, or "" if d is plausible. A computed duration may be as
// short as a few microseconds, so only shorter ones are rejected as numbers without a unit.
func Duration(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return Shift(d)
}

// Shift is like Duration, for a duration by which a time is moved and which may therefore be negative.
func Shift(d time.Duration) string {
	if d == 0 || d.Abs() >= time.Microsecond {
		return ""
	}
	return fmt.Sprintf("%s: a time.Duration counts nanoseconds; write %d*time.Second or %d*time.Millisecond", topology.FormatDuration(d), d, d)
}
