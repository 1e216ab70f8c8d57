package schedule

import (
	"testing"
	"time"
)

// An occurrence that was rescheduled is withdrawn when its recurring task is paused or deleted, but not when it is
// edited, because the edit would not create the occurrence again.
func TestRecurringWithdrawsMoved(t *testing.T) {
	for _, what := range []string{"delete", "pause", "edit"} {
		c := newCalendar(t, 1)
		s, x, ctx := c.stores[0], c.schedules(), t.Context()
		c.idle = true
		check(t, x.Add(ctx, NoTx, Recurring{Name: "a", Cron: "0 * * * *", Task: toQ()}))
		check(t, s.Reschedule(ctx, NoTx, "a@2026-01-01T13:00:00Z", c.now.Add(30*24*time.Hour)))
		c.now = c.now.Add(49 * time.Hour)
		want := "cancelled"
		switch what {
		case "delete":
			check(t, x.Delete(ctx, NoTx, "a"))
		case "pause":
			check(t, x.Pause(ctx, NoTx, "a"))
		default:
			want = "pending"
			check(t, x.Edit(ctx, NoTx, "a", func(r *Recurring) error { r.Cron = "5 * * * *"; return nil }))
		}
		if got := c.tasks("a"); got[0] != "2026-01-01T13:00:00Z "+want {
			t.Errorf("%s: got the tasks %q, want the first one %s", what, got, want)
		}
	}
}
