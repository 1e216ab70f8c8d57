package schedule

import (
	"errors"
	"testing"
	"time"
)

func TestRecurringState(t *testing.T) {
	now := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		r         Recurring
		state     RecurringState
		upcoming  int
		timetable string
	}{
		{Recurring{Cron: "@hourly"}, RecurringActive, 3, "@hourly UTC"},
		{Recurring{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, RecurringActive, 3, "30 2 * * * Europe/Berlin"},
		{Recurring{Every: 90 * time.Minute, CreatedAt: now, End: now.Add(4 * time.Hour)}, RecurringActive, 2, "every 1h30m"},
		{Recurring{Every: time.Hour, CreatedAt: now, End: now.Add(time.Hour)}, RecurringEnded, 0, "every 1h"},
		{Recurring{Cron: "@hourly", Paused: true}, RecurringPaused, 0, "@hourly UTC"},
		{Recurring{Cron: "odd", LastError: "no", Paused: true}, RecurringInvalid, 0, "odd UTC"},
		{Recurring{Cron: "@hourly", TimeZone: "Mars/X"}, RecurringActive, 0, "@hourly Mars/X"},
	} {
		if s, n, text := c.r.State(now), len(c.r.Upcoming(now, 3)), c.r.Timetable(); s != c.state || n != c.upcoming || text != c.timetable {
			t.Errorf("%+v is %s with %d ahead, %s, want %s, %d, %s", c.r, s, n, text, c.state, c.upcoming, c.timetable)
		}
	}
}

// An invalid timetable is an error, and does not panic.
func TestNextOfAnInvalidTimetable(t *testing.T) {
	for _, r := range []Recurring{{}, {Every: -time.Second}, {Every: time.Millisecond}, {Cron: "@daily", Every: time.Second}, {Cron: "odd"}} {
		list, err := r.Next(time.Now(), 1)
		if _, named := errors.AsType[*RecurringError](err); list != nil || !named {
			t.Errorf("%+v: got %v, %v, want no occurrences and a *RecurringError", r, list, err)
		}
	}
}
