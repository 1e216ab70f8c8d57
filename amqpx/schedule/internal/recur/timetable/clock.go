package timetable

import "time"

// clock finds the points in time at which the wall clock of a time zone matches an expression. Wall
// clock times are represented as times in UTC.
type clock struct {
	zone *time.Location
	wall func(after time.Time) time.Time // the next match, zero for none
}

// once returns the next match of an expression that names hours. Each matching wall clock time
// occurs once: when clocks are set back, at the first of its two times, and when it does not exist
// because clocks are set forward, at the end of the gap. Several matches in one gap become one.
func (c clock) once(after time.Time) time.Time {
	// A later wall clock time never maps to an earlier point in time, and all wall clock times up to
	// the one that is shown now are past.
	for w := c.wall(c.shown(after)); !w.IsZero(); w = c.wall(w) {
		if at := c.instant(w); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// running returns the next match of an expression that matches every hour and so means a fixed
// rhythm. A match in the hour that is repeated occurs twice, and a match in the hour that is skipped
// does not occur.
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
		return begin // w is in the gap before
	case shown.Before(w):
		return end // w is in the gap after
	case begin.IsZero():
		return at
	}
	// The clock may have shown w already, before it was set back.
	_, offset := begin.Add(-1).In(c.zone).Zone()
	if earlier := w.Add(-time.Duration(offset) * time.Second); earlier.Before(begin) {
		return earlier
	}
	return at
}
