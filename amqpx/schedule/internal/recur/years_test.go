//go:build !race

// Like the simulations, this test runs in one goroutine on SQLite, which the race detector makes ten times slower.
// Therefore `make test` runs it without the race detector.

package recur

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// mortal is a database whose connection is sometimes lost during a transaction, or during its commit, either before or
// after the commit takes effect.
type mortal struct {
	sqldb.DB

	random *rand.Rand
	deaths *int
}

var errDeath = errors.New("the process is dead")

type mortalTx struct {
	sqldb.Tx

	m    *mortal
	left int // remaining statements until the relay dies
}

func (m *mortal) Begin(ctx context.Context, opts *sql.TxOptions) (sqldb.Tx, error) {
	tx, err := m.DB.Begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	left := 1 << 30
	if m.random.IntN(10) == 0 {
		left = m.random.IntN(6)
	}
	return &mortalTx{tx, m, left}, nil
}

func (t *mortalTx) dies() bool {
	t.left--
	if t.left >= 0 {
		return false
	}
	*t.m.deaths++
	return true
}

func (t *mortalTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.dies() {
		return nil, errDeath
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *mortalTx) Commit(ctx context.Context) error {
	if !t.dies() {
		return t.Tx.Commit(ctx)
	}
	if t.m.random.IntN(2) == 0 {
		return errors.Join(t.Tx.Commit(ctx), errDeath)
	}
	return errors.Join(t.Tx.Rollback(ctx), errDeath)
}

// Three relays plan recurring tasks in Berlin and New York for two years, and may die at any time during their work.
// Every occurrence is created once, before it is due, and has the right local time.
func TestTwoYears(t *testing.T) {
	c := newCalendar(t, 4) // the first relay adds the rows, and never dies
	random := rand.New(rand.NewPCG(1, 2))
	deaths := 0
	for _, p := range c.planners[1:] {
		p.DB.DB = &mortal{p.DB.DB, random, &deaths}
	}
	start := c.now
	end := start.AddDate(2, 0, 0)
	var list []rows.Schedule
	for _, zone := range []string{"Europe/Berlin", "America/New_York"} {
		for _, cron := range []string{"30 2 * * *", "30 1 * * *", "0 8 * * mon-fri", "0 */6 * * sun", "15 3 L * *"} {
			list = append(list, rows.Schedule{Name: zone + " " + cron, Cron: cron, TimeZone: zone, Task: toQ()})
		}
	}
	list = append(list,
		rows.Schedule{Name: "forty hours", Every: 40 * time.Hour, Task: toQ()},
		rows.Schedule{Name: "alone", Cron: "45 1 * * *", TimeZone: "Europe/Berlin", Overlap: OverlapSkip, Task: toQ()})
	for i := range list {
		c.add(list[i])
		list[i].CreatedAt = c.now
	}
	for c.now.Before(end) {
		c.consume()
		var next sql.NullInt64
		check(t, c.db.QueryRowContext(t.Context(), "SELECT MIN(plan_at) FROM rabbitdelay_schedules").Scan(&next))
		if at := time.UnixMilli(next.Int64); at.After(c.now) {
			c.now = at
		} else {
			c.now = c.now.Add(time.Second)
		}
		_, err := c.planners[1+random.IntN(3)].PlanAll(t.Context())
		if err != nil && !errors.Is(err, errDeath) {
			t.Fatalf("PlanAll: got %v, want nil or errDeath", err)
		}
	}
	c.consume()
	if deaths < 100 {
		t.Errorf("the planners died %d times, want at least 100", deaths)
	}
	late := int64(0)
	check(t, c.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE created_at >= due_at").Scan(&late))
	if late > 0 {
		t.Errorf("%d tasks were created after their due time, want 0", late)
	}
	for i := range list {
		want, err := Next(&list[i], start, 20_000)
		check(t, err)
		var ids []string
		for _, o := range want {
			if !o.At.After(c.now) {
				ids = append(ids, strings.TrimPrefix(o.ID, list[i].Name+"@")+" done")
			}
		}
		got := c.tasks(list[i].Name)
		if len(got) < len(ids) || !slices.Equal(got[:len(ids)], ids) || len(got) > len(ids)+1 {
			t.Errorf("recurring task %s: got %d tasks, want %d, each done and in order, and at most the next one", list[i].Name, len(got), len(ids))
		}
		wallClock(t, list[i], want)
	}
	t.Logf("%d deaths", deaths)
}

// wallClock checks that a daily task has one occurrence a day in its time zone, at its local time or, if that does not
// exist, at the end of the gap.
func wallClock(t *testing.T, r rows.Schedule, list []Occurrence) {
	t.Helper()
	var minute, hour int
	if n, _ := fmt.Sscanf(r.Cron, "%d %d * * *", &minute, &hour); n != 2 || !strings.HasSuffix(r.Cron, "* * *") {
		return
	}
	want := fmt.Sprintf("%02d:%02d:00", hour, minute)
	gaps := 0
	for i, o := range list[:1000] {
		if i > 0 && o.At.YearDay() == list[i-1].At.YearDay() || i > 0 && o.At.Sub(list[i-1].At) > 25*time.Hour {
			t.Fatalf("recurring task %s: %s follows %s, want one occurrence a day", r.Name, o.At, list[i-1].At)
		}
		if got := o.At.Format(time.TimeOnly); got != want {
			gaps++
			if got != "03:00:00" || hour != 2 {
				t.Fatalf(`recurring task %s: got an occurrence at %s, want another local time only where 02:00 becomes 03:00:00`, r.Name, o.At)
			}
		}
	}
	if hour == 2 && gaps != 3 || hour != 2 && gaps != 0 {
		t.Errorf("recurring task %s: occurrences on %d days have another local time, want 3 for a time between 02:00 and 03:00, and otherwise 0", r.Name, gaps)
	}
}

// Two relays plan a thousand rows together, and miss none.
func TestThousand(t *testing.T) {
	c := newSharedCalendar(t, 2)
	for i := range 1000 {
		c.add(rows.Schedule{Name: fmt.Sprintf("n%04d", i), Cron: fmt.Sprintf("%d * * * *", i%3), Task: toQ()})
	}
	c.now = time.Date(2026, 1, 1, 14, 0, 0, 0, time.UTC)
	done := make(chan error, 2)
	for _, p := range c.planners {
		go func() {
			_, err := p.PlanAll(t.Context())
			done <- err
		}()
	}
	check(t, errors.Join(<-done, <-done))
	c.look()
	var n, pending int
	check(t, c.db.QueryRowContext(t.Context(), "SELECT COUNT(*), SUM(status = 'pending') FROM rabbitdelay_tasks").Scan(&n, &pending))
	// Each row has one pending task. Tasks of missed occurrences have been skipped or replaced.
	if pending != 1000 {
		t.Errorf("%d of %d tasks are pending, want 1000", pending, n)
	}
	conn, err := c.planners[0].DB.Conn(t.Context())
	check(t, err)
	list, err := conn.Schedules(t.Context(), "", 2000)
	check(t, err)
	if len(list) != 1000 {
		t.Errorf("%d recurring tasks are listed, want 1000", len(list))
	}
	for _, r := range list {
		if r.LastAt.Before(c.now) {
			t.Errorf("the last occurrence of %s is at %s, want %s or later", r.Name, r.LastAt, c.now)
		}
	}
}
