package recur

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

func TestOccurrencesAreCreatedAhead(t *testing.T) {
	c := newCalendar(t, 1)
	c.add(rows.Schedule{Name: "a", Cron: "0 8 * * *", TimeZone: "Europe/Berlin", Task: toQ()})
	c.expect("a", "2026-01-02T07:00:00Z pending") // created in the transaction that added the recurring task
	c.now = time.Date(2026, 1, 2, 6, 59, 59, 0, time.UTC)
	c.pass(2 * time.Second)
	c.expect("a", "2026-01-02T07:00:00Z done", "2026-01-03T07:00:00Z pending")

	c.add(rows.Schedule{Name: "b", Every: 20 * time.Second, Task: toQ()})
	c.expect("b", "2026-01-02T07:00:21Z pending", "2026-01-02T07:00:41Z pending", "2026-01-02T07:01:01Z pending")
	c.pass(10 * time.Minute)
	if list := c.tasks("b"); len(list) < 31 || len(list) > 33 {
		t.Errorf("after ten minutes: got %d tasks, want 31 to 33", len(list))
	}
	if err := c.tryAdd(rows.Schedule{Name: "b", Every: time.Second, Task: toQ()}); !errors.Is(err, ErrExists) {
		t.Errorf("adding a second recurring task with the same name: got %v, want ErrExists", err)
	}
}

// If no relay runs for three days, from Friday noon to Monday noon, the misfire policy decides which occurrences are
// skipped. Occurrences that already had a task are treated like those without one.
func TestOutage(t *testing.T) {
	hours := func(from, to int, status string) []string {
		var list []string
		for h := from; h <= to; h++ {
			list = append(list, time.Date(2026, 1, 2, h, 0, 0, 0, time.UTC).Format("2006-01-02T15:04:05Z")+" "+status)
		}
		return list
	}
	before := append(hours(9, 11, "done"), hours(12, 12, "done")...)
	ahead := hours(85, 85, "pending") // the occurrence on Monday at 13:00
	for _, tt := range []struct {
		name  string
		r     rows.Schedule
		after []string
	}{
		{"skip", rows.Schedule{Misfire: MisfireSkip}, slices.Concat(before, hours(13, 13, "cancelled"), hours(84, 84, "done"), ahead)},
		{"once", rows.Schedule{}, slices.Concat(before, hours(13, 13, "cancelled"), hours(83, 84, "done"), ahead)},
		{"all", rows.Schedule{Misfire: MisfireAll}, slices.Concat(before, hours(13, 84, "done"), ahead)},
		{"all, at most 10", rows.Schedule{Misfire: MisfireAll, MisfireLimit: 10}, slices.Concat(before, hours(13, 13, "done"), hours(74, 84, "done"), ahead)},
		{"skip, no overlap", rows.Schedule{Misfire: MisfireSkip, Overlap: OverlapSkip}, slices.Concat(before, hours(13, 13, "cancelled"),
			hours(84, 84, "done"), ahead)},
		{"once, no overlap", rows.Schedule{Overlap: OverlapSkip}, slices.Concat(before, hours(13, 13, "cancelled"), hours(84, 84, "done"), ahead)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCalendar(t, 1)
			c.now = time.Date(2026, 1, 2, 8, 30, 0, 0, time.UTC)
			r := tt.r
			r.Name, r.Cron, r.Task = "a", "@hourly", toQ()
			c.add(r)
			for c.now.Before(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)) {
				c.now = c.now.Add(5 * time.Minute)
				c.look()
				c.now = c.now.Add(2 * time.Second)
				c.look()
				c.now = c.now.Add(-2 * time.Second)
			}
			// At 12:00:30, the last occurrence is late but not missed.
			c.now = time.Date(2026, 1, 5, 12, 0, 30, 0, time.UTC)
			c.idle = true
			c.look()
			c.idle = false
			c.pass(5 * time.Second)
			c.expect("a", tt.after...)
			if got := c.get("a"); tt.name != "all" && got.SkippedAt.IsZero() {
				t.Errorf("the row %+v has a zero SkippedAt, want the time of the last skipped occurrence", got)
			}
		})
	}
}

// With the overlap policy skip, occurrences are skipped while the previous one is still pending or running.
func TestOverlap(t *testing.T) {
	c := newCalendar(t, 1)
	c.add(rows.Schedule{Name: "a", Cron: "*/10 * * * *", Task: toQ(), Overlap: OverlapSkip})
	c.expect("a", "2026-01-01T12:10:00Z pending")
	c.idle = true
	c.pass(35 * time.Minute)
	c.expect("a", "2026-01-01T12:10:00Z pending")
	if at := c.get("a").SkippedAt; !at.Equal(time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)) {
		t.Errorf("SkippedAt = %s, want 2026-01-01T12:30:00Z", at)
	}
	c.idle = false
	c.pass(2 * time.Minute) // the time is now 12:37
	c.expect("a", "2026-01-01T12:10:00Z done", "2026-01-01T12:40:00Z pending")
	// An occurrence that failed permanently does not block the next ones.
	c.exec("UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE id = 'a@2026-01-01T12:40:00Z'")
	c.now = time.Date(2026, 1, 1, 12, 40, 1, 0, time.UTC)
	c.look()
	c.expect("a", "2026-01-01T12:10:00Z done", "2026-01-01T12:40:00Z failed", "2026-01-01T12:50:00Z pending")
}
