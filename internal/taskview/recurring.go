package taskview

import (
	"cmp"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// RecurringState shows whether a recurring task creates tasks and, if not, why.
type RecurringState string

// The states of a recurring task. In the states paused and invalid, no tasks are created until the recurring task is
// changed.
const (
	RecurringActive  RecurringState = "active"
	RecurringPaused  RecurringState = "paused"
	RecurringEnded   RecurringState = "ended"   // there are no further occurrences
	RecurringInvalid RecurringState = "invalid" // LastError contains the reason
)

// StateOf returns the state of a recurring task, which shows whether tasks are created. If the time zone is unknown in
// this process, StateOf returns active, because it may be known in a relay's process.
func StateOf(r schedule.Recurring, now time.Time) RecurringState {
	switch {
	case r.LastError != "":
		return RecurringInvalid
	case r.Paused:
		return RecurringPaused
	}
	if next, err := r.Next(now, 1); err == nil && len(next) == 0 {
		return RecurringEnded
	}
	return RecurringActive
}

// Upcoming returns the next n occurrences, provided that the recurring task is not changed. It returns none if the
// recurring task is paused or invalid, or if its time zone is unknown in this process.
func Upcoming(r schedule.Recurring, now time.Time, n int) []schedule.Occurrence {
	if r.Paused || r.LastError != "" {
		return nil
	}
	list, err := r.Next(now, n)
	if err != nil {
		return nil
	}
	return list
}

// Timetable describes the recurrence as text, such as "30 2 * * * Europe/Berlin" or "every 15m".
func Timetable(r schedule.Recurring) string {
	if r.Cron == "" {
		return "every " + topology.FormatDuration(r.Every)
	}
	return r.Cron + " " + cmp.Or(r.TimeZone, "UTC")
}
