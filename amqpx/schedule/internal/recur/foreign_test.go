package recur

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// If another program writes an invalid row, the row's last_error says why it is invalid, and other rows are not
// affected.
func TestForeignRows(t *testing.T) {
	c := newCalendar(t, 1)
	insert := func(name, columns, values string) {
		c.exec("INSERT INTO rabbitdelay_schedules (name, queue, " + columns + ") VALUES ('" + name + "', 'q', " + values + ")")
	}
	insert("good", "cron", "'0 8 * * *'")
	insert("interval", "every_ms, starts_at", "3600000, 1767261600000")
	for name, row := range map[string][3]string{
		"bad cron":    {"cron", "'0 8 * *'", "expected 5 fields"},
		"bad zone":    {"cron, time_zone", "'@daily', 'Mars/Phobos'", "is unknown"},
		"bad headers": {"cron, headers", "'@daily', '[1]'", "expected a JSON object of strings"},
		"bad tags":    {"cron, tags", "'@daily', '{}'", "expected a JSON array of strings"},
		"bad every":   {"every_ms", "1500", "expected whole seconds"},
		"long every":  {"every_ms", "9223372036854775807", "expected at most"},
		"big":         {"cron, body", "'@daily', zeroblob(16777217)", "16777217 bytes, expected at most"},
		"far":         {"cron, starts_at", "'@daily', 9223372036854775807", "the year 9999"},
		"long key":    {"cron, content_type", "'@daily', '" + strings.Repeat("x", 300) + "'", "300 bytes"},
	} {
		insert(name, row[0], row[1])
		c.look()
		if got := c.get(name); !strings.Contains(got.LastError, row[2]) || !got.NextAt.IsZero() {
			t.Errorf("row %s: got the error %q and NextAt = %s, want an error with %q and the zero time", name, got.LastError, got.NextAt, row[2])
		}
		c.expect(name)
	}
	c.expect("good", "2026-01-02T08:00:00Z pending")
	c.expect("interval", "2026-01-01T13:00:00Z pending")
	// The planner does not keep reading invalid rows without a pause.
	if pause := c.look(); pause < time.Second {
		t.Errorf("the planner pauses for %v, want at least 1s", pause)
	}
	// A program that corrects a row increases its version and resets plan_at.
	c.exec("UPDATE rabbitdelay_schedules SET cron = '0 9 * * *', version = version + 1, plan_at = 0 WHERE name IN ('bad cron', 'good')")
	c.look()
	c.expect("bad cron", "2026-01-02T09:00:00Z pending")
	c.expect("good", "2026-01-02T08:00:00Z cancelled", "2026-01-02T09:00:00Z pending")
	if got := c.get("bad cron").LastError; got != "" {
		t.Errorf("the corrected row has the error %q, want none", got)
	}
	// The table refuses values that no relay could read.
	for _, row := range []string{"'a@b', 'q', '@daily'", "'a', '', '@daily'", "'a', 'q', ''", "x'00', 'q', '@daily'"} {
		if _, err := c.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_schedules (name, queue, cron) VALUES ("+row+")"); err == nil {
			t.Errorf("inserting the row %s: got no error, want one", row)
		}
	}
}

// However many rows cannot be planned, they do not affect others, and each shows its reason. When they can be planned
// again, they continue according to their misfire policies.
func TestRowsThatCannotBePlanned(t *testing.T) {
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
			t.Errorf(`row %s: got the error %q, want one with "expected a JSON object of strings"`, got.Name, got.LastError)
		}
		if got := c.get(fmt.Sprintf("odd%02d", i)); !strings.Contains(got.LastError, "no odd tasks") {
			t.Errorf(`row %s: got the error %q, want one with "no odd tasks"`, got.Name, got.LastError)
		}
	}
	c.setPaused("null00", true)
	c.setPaused("null00", false)
	if got := c.get("null00"); !strings.Contains(got.LastError, "expected a JSON object") {
		t.Errorf(`after the row was paused and resumed: got the error %q, want it to keep the one with "expected a JSON object"`, got.LastError)
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
	c.expect("odd00", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending", "2026-01-01T15:00:00Z pending",
		"2026-01-01T16:00:00Z pending", "2026-01-01T17:00:00Z pending")
}

// If a row exceeds a limit of one relay, that relay reports an error but does not mark the row as invalid. Another
// relay plans the row, including its missed occurrences.
func TestLimitsOfAReader(t *testing.T) {
	c := newCalendar(t, 2)
	large, small := c.planners[0], c.planners[1]
	small.MaxBody = 10
	long := toQ()
	long.Body = []byte(strings.Repeat("x", 100))
	c.add(rows.Schedule{Name: "a", Cron: "@hourly", Misfire: MisfireAll, Task: long})
	c.add(rows.Schedule{Name: "b", Cron: "@hourly", Task: toQ()})
	plan := func(p *Planner, want string) {
		t.Helper()
		_, err := p.PlanAll(t.Context())
		if want == "" && err != nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Fatalf(`PlanAll: got %v, want an error with %q ("" means no error)`, err, want)
		}
	}
	c.now = time.Date(2026, 1, 1, 13, 0, 1, 0, time.UTC)
	plan(small, `"a": body: 100 bytes, but this relay's Config.MaxBody is 10`)
	c.expect("b", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending")
	if got := c.get("a"); got.LastError != "" {
		t.Errorf("the valid row has the error %q, want none", got.LastError)
	}
	c.now = c.now.Add(3 * time.Hour)
	plan(small, "MaxBody")
	plan(large, "")
	c.expect("a", "2026-01-01T13:00:00Z pending", "2026-01-01T14:00:00Z pending", "2026-01-01T15:00:00Z pending",
		"2026-01-01T16:00:00Z pending", "2026-01-01T17:00:00Z pending")

	// A time zone that one relay does not know may be a mistake, so the row shows an error. If the zone is only newer
	// than this relay's data, another relay plans the row immediately.
	const zone = "Test/Newer"
	t.Cleanup(func() { Zones.Delete(zone) })
	c.exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, time_zone) VALUES ('z', 'q', '@hourly', ?)", zone)
	plan(small, "MaxBody") // the first relay cannot plan the row because of its MaxBody
	if got := c.get("z"); !strings.Contains(got.LastError, "is unknown") {
		t.Errorf(`the row has the error %q, want one with "is unknown"`, got.LastError)
	}
	Zones.Store(zone, time.UTC)
	plan(large, "")
	c.expect("z", "2026-01-01T17:00:00Z pending")
	if got := c.get("z"); got.LastError != "" {
		t.Errorf("the row that another relay has planned has the error %q, want none", got.LastError)
	}
}

// If a relay is stopped while it plans a row, it does not put any row aside.
func TestRelayEndsWhilePlanning(t *testing.T) {
	c := newCalendar(t, 1)
	c.add(rows.Schedule{Name: "a", Cron: "@hourly", Task: toQ()})
	p := c.planners[0]
	planned := 0
	for k := range 12 {
		c.now = c.now.Add(time.Hour)
		ctx, end := context.WithCancel(t.Context())
		calls := 0
		was := p.Poller.Local
		p.Poller.Local = func() time.Time {
			if calls++; calls == k {
				end()
			}
			return was()
		}
		if _, err := p.PlanAll(ctx); err == nil {
			planned++
		}
		p.Poller.Local = was
		end()
		if p.Aside() != nil {
			t.Fatalf("stopped at call %d: the planner skips the rows %v, want none", k, p.Aside())
		}
	}
	if planned == 0 || planned == 12 {
		t.Errorf("%d of 12 plans were complete, want 1 to 11", planned)
	}
}
