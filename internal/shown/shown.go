// Package shown formats numbers, durations, times and strings from other sources for terminals, pages and logs. It
// knows nothing about messages, tasks or the broker.
package shown

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Line returns s as one line that is safe to print. It quotes text that contains control characters, line breaks,
// characters that change the writing direction, or invisible characters.
func Line(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// traceID is the placeholder for a trace's id in a link.
const traceID = "{id}"

// CheckTraceLink returns nil if pattern is empty, or is the address of a web site that contains {id} as the placeholder
// for a trace's id.
func CheckTraceLink(pattern string) error {
	if pattern == "" {
		return nil
	}
	u, err := url.Parse(strings.ReplaceAll(pattern, traceID, "0"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || !strings.Contains(pattern, traceID) {
		return fmt.Errorf("%q; expected an address with {id} for the trace's id, such as https://traces.example.org/trace/{id}", Shorten(pattern, 60))
	}
	return nil
}

// TraceLink returns the address of the trace with the given id.
func TraceLink(pattern, id string) string {
	return strings.ReplaceAll(pattern, traceID, url.QueryEscape(id))
}

// CheckColor returns nil if color is empty or has the form #c62828.
func CheckColor(color string) error {
	digits, hash := strings.CutPrefix(color, "#")
	if color == "" || hash && len(digits) == 6 && strings.Trim(strings.ToLower(digits), "0123456789abcdef") == "" {
		return nil
	}
	return fmt.Errorf("%q; expected a colour of six hexadecimal digits, such as #c62828", Shorten(color, 20))
}

// maxTitle is the maximum length of a title, so that it fits next to the navigation.
const maxTitle = 40

// CheckTitle returns nil if title is empty or one short line.
func CheckTitle(title string) error {
	if utf8.RuneCountInString(title) > maxTitle || Line(title) != title || strings.TrimSpace(title) != title {
		return fmt.Errorf("%q; expected one line of at most %d characters", Shorten(title, 60), maxTitle)
	}
	return nil
}

// OneLine joins the lines of s, for example of a joined error. It separates them by semicolons, or by a space after a
// line that ends in a colon.
func OneLine(s string) string {
	var out string
	for line := range strings.Lines(s) {
		switch line = strings.TrimSpace(line); {
		case line == "":
		case out == "":
			out = line
		case strings.HasSuffix(out, ":"):
			out += " " + line
		default:
			out += "; " + line
		}
	}
	return out
}

// Shorten returns at most n characters of s. If it truncates s, the last character is an ellipsis.
func Shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Known formats n with the function text. If unknown is true, n is only a lower bound, and Known returns "at least"
// with the number, or "unknown" if n is 0.
func Known(n int64, unknown bool, text func(int64) string) string {
	switch {
	case !unknown:
		return text(n)
	case n == 0:
		return "unknown"
	}
	return "at least " + text(n)
}

// Number returns n with thousands separators, such as 12,345.
func Number[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Count returns n with its noun: "1 message" or "2,000 messages".
func Count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + many
}

// Instant formats a time in UTC with milliseconds, as in RFC 3339.
func Instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// FromNow returns the approximate distance of at from now, such as "in 1h30m", "2d1h ago" or "now".
func FromNow(at, now time.Time) string {
	d := at.Sub(now).Round(time.Second)
	days := (at.Unix() - now.Unix()) / (24 * 60 * 60)
	switch {
	case days > farDays: // a Duration cannot represent it
		return fmt.Sprintf("in %dd", days)
	case days < -farDays:
		return fmt.Sprintf("%dd ago", -days)
	case d == 0:
		return "now"
	case d < 0:
		return Roughly(-d) + " ago"
	}
	return "in " + Roughly(d)
}

// farDays, about a hundred years, is the distance from which FromNow counts only days.
const farDays = 36_500

// Roughly returns the two largest units of d. From ten days on, it returns only the days.
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
