package timetable

import "time"

// clock finds the instants at which the wall clock of a zone shows what an
// expression names. Wall clocks are kept as times in UTC.
type clock struct {
	zone *time.Location
	wall func(after time.Time) time.Time // the next match, zero for none
}

// once is for expressions that name hours. Each wall clock time that matches is
// one instant: the first of two when clocks are set back, the end of the gap when
// it does not exist because they were set forward. Several in one gap are one.
func (c clock) once(after time.Time) time.Time {
	// A later wall clock time is never an earlier instant, and those up to what
	// the clock shows now are all past.
	for w := c.wall(c.shown(after)); !w.IsZero(); w = c.wall(w) {
		if at := c.instant(w); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// running is for expressions of every hour, which mean a rhythm: a match in the
// hour that is repeated is two instants, and in the hour that is left out none.
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
		after = change // goes on by the offset that holds from there on
	}
}

// shown is what the wall clock shows.
func (c clock) shown(t time.Time) time.Time {
	_, offset := t.In(c.zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// instant is when the wall clock shows w.
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
	// The clock may have shown it already, before it was set back.
	_, offset := begin.Add(-1).In(c.zone).Zone()
	if earlier := w.Add(-time.Duration(offset) * time.Second); earlier.Before(begin) {
		return earlier
	}
	return at
}
