package schedule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
)

// Rows that cannot be planned, however many, harm only themselves, and each has its
// reason. When they can be, they go on by their misfire policy.
func TestRecurringRowsThatCannotBePlanned(t *testing.T) {
	c := newCalendar(t, 1)
	for i := range 12 {
		c.exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, headers) VALUES (?, 'q', '@hourly', ?)", fmt.Sprintf("null%02d", i), []string{"null", ""}[i%2])
		c.exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, misfire) VALUES (?, 'odd', '@hourly', 'all')", fmt.Sprintf("odd%02d", i))
	}
	c.exec("INSERT INTO rabbitdelay_schedules (name, queue, cron) VALUES ('zoo', 'q', '@hourly')")
	c.exec("CREATE TRIGGER refuse BEFORE INSERT ON rabbitdelay_tasks WHEN NEW.queue = 'odd' BEGIN SELECT RAISE(ABORT, 'no odd tasks'); END")
	c.look()
	c.expect("zoo", "2026-01-01T13:00:00Z pending")
	for i := range 12 {
		if got := c.get(fmt.Sprintf("null%02d", i)); !strings.Contains(got.LastError, "expected a JSON object of strings") {
			t.Errorf("%s: %q", got.Name, got.LastError)
		}
		if got := c.get(fmt.Sprintf("odd%02d", i)); !strings.Contains(got.LastError, "no odd tasks") || got.State(c.now) != RecurringWrong {
			t.Errorf("%s: %q", got.Name, got.LastError)
		}
	}
	check(t, c.schedules().Pause(t.Context(), NoTx, "null00"))
	check(t, c.schedules().Resume(t.Context(), NoTx, "null00"))
	if got := c.get("null00"); !strings.Contains(got.LastError, "expected a JSON object") {
		t.Errorf("a pause has mended it: %q", got.LastError)
	}
	c.exec("DROP TRIGGER refuse")
	c.now = c.now.Add(2 * time.Minute)
	c.look()
	c.expect("odd00", "2026-01-01T13:00:00Z pending")
	c.exec("CREATE TRIGGER refuse BEFORE INSERT ON rabbitdelay_tasks WHEN NEW.queue = 'odd' BEGIN SELECT RAISE(ABORT, 'no odd tasks'); END")
	for range 4 {
		c.now = c.now.Add(59 * time.Minute)
		c.look()
	}
	c.exec("DROP TRIGGER refuse")
	c.now = c.now.Add(2 * time.Minute)
	c.look()
	c.expect("odd00", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending", "2026-01-01T15:00:00Z pending", "2026-01-01T16:00:00Z pending", "2026-01-01T17:00:00Z pending")
}

// A limit of one relay is no fault of the row: others plan it, and nothing that was
// missed is forgotten. The relay reports it.
func TestRecurringLimitsOfAReader(t *testing.T) {
	c := newCalendar(t, 2)
	small, large := c.stores[0], c.stores[1]
	small.planner.MaxBody = 10
	long := toQ()
	long.Body = []byte(strings.Repeat("x", 100))
	check(t, large.Schedules().Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "@hourly", Misfire: MisfireAll, Task: long}))
	check(t, large.Schedules().Add(t.Context(), NoTx, Recurring{Name: "b", Cron: "@hourly", Task: toQ()}))
	plan := func(s *Store, want string) {
		t.Helper()
		_, err := s.planner.PlanAll(t.Context())
		if want == "" && err != nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Fatalf("got %v, expected %q", err, want)
		}
	}
	c.now = time.Date(2026, 1, 1, 13, 0, 1, 0, time.UTC)
	plan(small, `"a": body: 100 bytes, but this relay's Config.MaxBody is 10`)
	c.expect("b", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending")
	if got := c.get("a"); got.LastError != "" {
		t.Errorf("it is marked as wrong: %s", got.LastError)
	}
	c.now = c.now.Add(3 * time.Hour)
	plan(small, "MaxBody")
	plan(large, "")
	c.expect("a", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending", "2026-01-01T15:00:00Z pending", "2026-01-01T16:00:00Z pending", "2026-01-01T17:00:00Z pending")

	// A time zone that is unknown here may be a mistake, which its row shows; or newer
	// than this relay, and then another one goes on at once.
	const zone = "Test/Newer"
	t.Cleanup(func() { recur.Zones.Delete(zone) })
	c.exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, time_zone) VALUES ('z', 'q', '@hourly', ?)", zone)
	plan(small, "MaxBody") // of the first
	if got := c.get("z"); !strings.Contains(got.LastError, "is unknown") {
		t.Errorf("the row says %q", got.LastError)
	}
	recur.Zones.Store(zone, time.UTC)
	plan(large, "")
	c.expect("z", "2026-01-01T17:00:00Z pending")
	if got := c.get("z"); got.LastError != "" {
		t.Errorf("it still says %s", got.LastError)
	}
}

// An occurrence that was moved is withdrawn by a pause and a deletion, and not by a
// change, which would put nothing in its place.
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
			t.Errorf("%s: %q, expected %s", what, got, want)
		}
	}
}

// A relay that ends while it plans a row leaves no row alone when it runs again.
func TestRelayEndsWhilePlanning(t *testing.T) {
	c := newCalendar(t, 1)
	check(t, c.schedules().Add(t.Context(), NoTx, Recurring{Name: "a", Cron: "@hourly", Task: toQ()}))
	s := c.stores[0]
	planned := 0
	for k := range 12 {
		c.now = c.now.Add(time.Hour)
		ctx, end := context.WithCancel(t.Context())
		calls := 0
		was := s.pace.Up
		s.pace.Up = func() time.Duration {
			if calls++; calls == k {
				end()
			}
			return was()
		}
		if _, err := s.planner.PlanAll(ctx); err == nil {
			planned++
		}
		s.pace.Up = was
		end()
		if s.planner.Aside() != nil {
			t.Fatalf("left alone after call %d: %v", k, s.planner.Aside())
		}
	}
	if planned == 0 || planned == 12 {
		t.Errorf("%d of 12 looks were complete: the others were to end early", planned)
	}
}
