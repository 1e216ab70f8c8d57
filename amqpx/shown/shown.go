// Package shown is how people see what others wrote, and instants, in a terminal
// and on a page.
package shown

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Line keeps what others wrote from steering the terminal, breaking the line,
// turning it around or hiding in it: such a text is quoted.
func Line(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// Shorten cuts a text to n characters, the last of which then says that it was cut.
func Shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Instant is an instant in UTC, with milliseconds (RFC 3339).
func Instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// FromNow says how far away an instant is, roughly.
func FromNow(at, now time.Time) string {
	d := at.Sub(now).Round(time.Second)
	switch {
	case d == 0:
		return "now"
	case d < 0:
		return Roughly(-d) + " ago"
	}
	return "in " + Roughly(d)
}

// Roughly has the two largest units of a duration, of many days only these.
func Roughly(d time.Duration) string {
	const day = 24 * time.Hour
	d = d.Round(time.Second)
	switch {
	case d < time.Hour:
	case d < day:
		d = d.Truncate(time.Minute)
	case d < 10*day:
		d = d.Truncate(time.Hour)
	default:
		d = d.Truncate(day)
	}
	return topology.FormatDuration(d)
}
