// Package timetable computes recurrence times, from a cron expression in a time zone or from an
// interval. It uses no clock, and no I/O except for reading the time zone database.
package timetable

import "time"

// Rule is a recurrence rule: either Cron in Zone, or Every.
type Rule struct {
	// Cron has 5 fields, or 6 with seconds in front, or is a predefined schedule such as @daily.
	Cron string
	Zone *time.Location
	// Every is an interval of whole seconds, counted from Anchor.
	Every  time.Duration
	Anchor time.Time
	// Start is the earliest possible recurrence. All recurrences are before End. Zero means no bound.
	Start, End time.Time
}

// Timetable is a validated Rule.
type Timetable struct {
	next       func(after time.Time) time.Time // zero for none
	start, end time.Time
}

// New validates a rule and returns its timetable. The error concerns Cron.
func New(r Rule) (*Timetable, error) {
	t := &Timetable{start: r.Start, end: r.End}
	if r.Cron == "" {
		anchor := ceil(r.Anchor)
		t.next = func(after time.Time) time.Time { return elapsed(anchor, r.Every, after) }
		return t, nil
	}
	spec, err := parse(r.Cron)
	if err != nil {
		return nil, err
	}
	c := clock{zone: r.Zone, wall: spec.Next}
	t.next = c.once
	if spec.Hour&everyHour == everyHour {
		t.next = c.running
	}
	return t, nil
}

// everyHour has one bit set for each of the hours 0 to 23.
const everyHour = 1<<24 - 1

// Next returns the first recurrence after a time, or the zero time if there is none.
func (t *Timetable) Next(after time.Time) time.Time {
	if !t.start.IsZero() && after.Before(t.start) {
		after = t.start.Add(-1)
	}
	at := t.next(after)
	if at.IsZero() || !t.end.IsZero() && !at.Before(t.end) {
		return time.Time{}
	}
	return at
}

// Latest returns the last n recurrences between from and to, both inclusive, in order. There may be
// fewer than n.
func (t *Timetable) Latest(from, to time.Time, n int) []time.Time {
	// Search back in growing steps, because there may be millions of recurrences.
	for back := time.Minute; ; back *= 2 {
		begin := to.Add(-back)
		if begin.Before(from) {
			begin = from
		}
		var list []time.Time
		for at := t.Next(begin.Add(-1)); !at.IsZero() && !at.After(to); at = t.Next(at) {
			list = append(list, at)
		}
		if len(list) >= n {
			return list[len(list)-n:]
		}
		if !begin.After(from) {
			return list
		}
	}
}

// elapsed returns the earliest of the times anchor, anchor + every, anchor + 2*every and so on that is later than the
// given time.
func elapsed(anchor time.Time, every time.Duration, after time.Time) time.Time {
	if after.Before(anchor) {
		return anchor
	}
	// Compute in seconds, because a Duration cannot exceed 292 years.
	step := int64(every / time.Second)
	n := (after.Unix() - anchor.Unix()) / step
	return time.Unix(anchor.Unix()+(n+1)*step, 0)
}

// ceil rounds up to a whole second.
func ceil(t time.Time) time.Time {
	if t.Nanosecond() == 0 {
		return t
	}
	return t.Truncate(time.Second).Add(time.Second)
}
