package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ParseInstant parses a time in one of these human-readable forms:
//
//	2026-12-24T08:00:00Z              RFC 3339, any offset
//	2026-12-24 08:00 Europe/Berlin    a local time, seconds optional
//	tomorrow 08:00 Europe/Berlin      or today
//	08:00 Europe/Berlin               the next time that the clocks there show 08:00
//	90m, +90m, 7d, -1h30m             from now
//	now
//
// A local time without a zone is in the location of now. A local time that does not exist because
// of daylight saving time is an error. If a local time occurs twice, ParseInstant returns the first
// occurrence.
func ParseInstant(s string, now time.Time) (time.Time, error) {
	s = strings.TrimSpace(s)
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		if t.IsZero() {
			return time.Time{}, fmt.Errorf("%s is the zero time of a variable that was never set; expected a time, or now", s)
		}
		return t, nil
	}
	if s == "now" {
		return now, nil
	}
	digits, past := strings.CutPrefix(s, "-")
	if !past {
		digits = strings.TrimPrefix(s, "+")
	}
	if d, err := topology.ParseDuration(digits); err == nil && !strings.HasPrefix(digits, "-") && !strings.HasPrefix(digits, "+") {
		if past {
			d = -d
		}
		return now.Add(d), nil
	}
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		return time.Time{}, instantError(s)
	}
	fields := strings.Fields(s)
	loc := now.Location()
	if n := len(fields); n > 1 && !strings.Contains(fields[n-1], ":") {
		var err error
		if loc, err = time.LoadLocation(fields[n-1]); err != nil || fields[n-1] == "Local" {
			return time.Time{}, fmt.Errorf("%q: %q is not a time zone; expected a name such as Europe/Berlin or UTC", s, fields[n-1])
		}
		fields = fields[:n-1]
	}
	now = now.In(loc)
	day, next := now, false
	switch {
	case len(fields) == 1:
		next = true
	case len(fields) != 2:
		return time.Time{}, instantError(s)
	case fields[0] == "tomorrow":
		day = now.AddDate(0, 0, 1)
	case fields[0] != "today":
		var err error
		if day, err = time.ParseInLocation(time.DateOnly, fields[0], loc); err != nil {
			return time.Time{}, instantError(s)
		}
	}
	clock, err := time.Parse(time.TimeOnly, fields[len(fields)-1])
	if err != nil {
		if clock, err = time.Parse("15:04", fields[len(fields)-1]); err != nil {
			return time.Time{}, instantError(s)
		}
	}
	t, err := at(day, clock)
	if next && (err != nil || !t.After(now)) {
		t, err = at(day.AddDate(0, 0, 1), clock)
	}
	return t, err
}

// at returns the given day at clock's hour, minute and second, or an error if daylight saving time skips that time.
func at(day, clock time.Time) (time.Time, error) {
	y, m, d := day.Date()
	t := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, day.Location())
	if t.Hour() != clock.Hour() || t.Minute() != clock.Minute() {
		return t, fmt.Errorf("%s does not exist in %s on %s because of daylight saving time; choose another time", clock.Format(time.TimeOnly), day.Location(), day.Format(time.DateOnly))
	}
	// If two times have the same wall clock time, time.Date does not specify which of them it returns. Choose the
	// earlier one, which has the offset from before the clocks were set back. They are set back by less than an hour in
	// some zones.
	if start, _ := t.ZoneBounds(); !start.IsZero() {
		_, before := start.Add(-1).Zone()
		_, after := t.Zone()
		if earlier := t.Add(time.Duration(after-before) * time.Second); earlier.Before(start) && earlier.Format(time.DateTime) == t.Format(time.DateTime) {
			t = earlier
		}
	}
	return t, nil
}

func instantError(s string) error {
	return fmt.Errorf("cannot parse %q as a time; expected a time such as 2026-12-24T08:00:00Z, \"tomorrow 08:00 Europe/Berlin\", now or 90m", s)
}
