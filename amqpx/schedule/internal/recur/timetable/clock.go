package timetable

import "time"

// clock finds the points in time at which the wall clock of a time zone matches an expression. Wall
// clock times are represented as times in UTC.
type clock struct {
	zone *time.Location
	wall func(after time.Time) time.Time // the next match, zero for none
}

// once returns the next match of an expression that names hours, such as "every day at 2:30". Each matching wall clock
// time occurs once. If clocks are set back and show the time twice, it occurs at the first of the two. If clocks are
// set forward and skip the time, it occurs at the end of the gap, and several skipped times occur only once.
func (c clock) once(after time.Time) time.Time {
	// Later wall clock times never map to earlier points in time, and all wall clock times up to the one that is shown
	// now have passed. So a forward search finds the earliest point in time.
	for w := c.wall(c.shown(after)); !w.IsZero(); w = c.wall(w) {
		if at := c.instant(w); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// running returns the next match of an expression that matches every hour, such as "every 20 minutes", and therefore
// means a fixed rhythm. If clocks are set back, matches occur in both passes of the repeated hour. If they are set
// forward, there are none in the skipped hour.
func (c clock) running(after time.Time) time.Time {
	for {
		local := after.In(c.zone)
		_, offset := local.Zone()
		w := c.wall(c.shown(after))
		if w.IsZero() {
			return w
		}
		at := w.Add(-time.Duration(offset) * time.Second)
		_, change := local.ZoneBounds()
		if change.IsZero() || at.Before(change) {
			return at
		}
		if first := c.shown(change); c.wall(first.Add(-1)).Equal(first) {
			return change
		}
		after = change // continue with the offset that applies from then on
	}
}

// shown returns the time that the wall clock shows at t.
func (c clock) shown(t time.Time) time.Time {
	_, offset := t.In(c.zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// instant returns the first point in time at which the wall clock shows w, or the end of the gap if it
// never does.
func (c clock) instant(w time.Time) time.Time {
	at := time.Date(w.Year(), w.Month(), w.Day(), w.Hour(), w.Minute(), w.Second(), w.Nanosecond(), c.zone)
	begin, end := at.ZoneBounds()
	switch shown := c.shown(at); {
	case shown.After(w):
		return begin // w is in the gap at the beginning of this offset
	case shown.Before(w):
		return end // w is in the gap at the end of this offset
	case begin.IsZero():
		return at
	}
	// If the clock was set back at begin, it may have shown w once before.
	_, offset := begin.Add(-1).In(c.zone).Zone()
	if earlier := w.Add(-time.Duration(offset) * time.Second); earlier.Before(begin) {
		return earlier
	}
	return at
}
