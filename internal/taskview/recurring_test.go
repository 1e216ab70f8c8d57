package taskview

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestRecurringState(t *testing.T) {
	now := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		r         schedule.Recurring
		state     RecurringState
		upcoming  int
		timetable string
	}{
		{schedule.Recurring{Cron: "@hourly"}, RecurringActive, 3, "@hourly UTC"},
		{schedule.Recurring{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, RecurringActive, 3, "30 2 * * * Europe/Berlin"},
		{schedule.Recurring{Every: 90 * time.Minute, CreatedAt: now, End: now.Add(4 * time.Hour)}, RecurringActive, 2, "every 1h30m"},
		{schedule.Recurring{Every: time.Hour, CreatedAt: now, End: now.Add(time.Hour)}, RecurringEnded, 0, "every 1h"},
		{schedule.Recurring{Cron: "@hourly", Paused: true}, RecurringPaused, 0, "@hourly UTC"},
		{schedule.Recurring{Cron: "odd", LastError: "no", Paused: true}, RecurringInvalid, 0, "odd UTC"},
		{schedule.Recurring{Cron: "@hourly", TimeZone: "Mars/X"}, RecurringActive, 0, "@hourly Mars/X"},
	} {
		if s, n, text := StateOf(c.r, now), len(Upcoming(c.r, now, 3)), Timetable(c.r); s != c.state || n != c.upcoming || text != c.timetable {
			t.Errorf("the recurring task %+v: got the state %s, %d upcoming times and the timetable %q, want %s, %d and %q", c.r, s, n, text, c.state, c.upcoming, c.timetable)
		}
	}
}
