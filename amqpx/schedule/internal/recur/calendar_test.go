package recur

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	_ "modernc.org/sqlite" // the database of these tests

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// calendar is a database with recurring tasks, the planners of several relays that share a clock, and a consumer that
// handles due tasks.
type calendar struct {
	t        *testing.T
	db       *sql.DB
	planners []*Planner
	now      time.Time
	idle     bool // the consumer handles nothing
}

// newCalendar returns a calendar whose database is in memory and therefore has only one connection.
func newCalendar(t *testing.T, relays int) *calendar {
	t.Helper()
	c := openCalendar(t, relays, ":memory:")
	c.db.SetMaxOpenConns(1)
	check(t, rows.Migrations.Migrate(t.Context(), sqldb.Of(c.db)))
	return c
}

// newSharedCalendar returns a calendar whose database is a file, so that relays can use several connections.
func newSharedCalendar(t *testing.T, relays int) *calendar {
	t.Helper()
	c := openCalendar(t, relays, "file:"+filepath.Join(t.TempDir(), "x.db")+
		"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	check(t, rows.Migrations.Migrate(t.Context(), sqldb.Of(c.db)))
	return c
}

func openCalendar(t *testing.T, relays int, dsn string) *calendar {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	c := &calendar{t: t, db: db, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	began := c.now
	for range relays {
		clock := polling.NewClock(func() time.Time { return c.now }, func(context.Context) (time.Time, error) { return c.now, nil }, nil)
		clock.Up = func() time.Duration { return c.now.Sub(began) }
		c.planners = append(c.planners, &Planner{
			DB: rows.Open(sqldb.Of(db), "", nil), Poller: polling.New(clock, time.Second, time.Minute, false), Log: zap.NewNop(), MaxBody: 1 << 20,
			CheckTask: relay.Check, Sendable: func(*rows.Task) *rows.FieldError { return nil },
		})
	}
	return c
}

// within runs do in a transaction.
func (c *calendar) within(do func(p *Planner, tx rows.Conn) error) error {
	p := c.planners[0]
	return p.DB.Within(c.t.Context(), p.DB.DB, func(tx rows.Conn) error { return do(p, tx) })
}

// tryAdd checks and adds a row.
func (c *calendar) tryAdd(s rows.Schedule) error {
	if err := c.planners[0].Check(&s); err != nil {
		return err
	}
	return c.within(func(p *Planner, tx rows.Conn) error { return p.Add(c.t.Context(), tx, &s) })
}

func (c *calendar) add(s rows.Schedule) {
	c.t.Helper()
	check(c.t, c.tryAdd(s))
}

func (c *calendar) setPaused(name string, paused bool) {
	c.t.Helper()
	check(c.t, c.within(func(p *Planner, tx rows.Conn) error { return p.SetPaused(c.t.Context(), tx, name, paused) }))
}

// look makes a relay plan all rows that are due for planning.
func (c *calendar) look() time.Duration {
	c.t.Helper()
	pause, err := c.planners[0].PlanAll(c.t.Context())
	check(c.t, err)
	c.consume()
	return pause
}

func (c *calendar) consume() {
	c.t.Helper()
	if !c.idle {
		c.exec("UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ? WHERE queue = 'q' AND exchange = '' AND status = 'pending' AND due_at <= ?",
			c.now.UnixMilli(), c.now.UnixMilli())
	}
}

// pass advances the time by d, and calls look as often as a relay would.
func (c *calendar) pass(d time.Duration) {
	c.t.Helper()
	for end := c.now.Add(d); c.now.Before(end); {
		pause := c.look()
		c.now = c.now.Add(min(pause, time.Second, end.Sub(c.now)))
	}
	c.look()
}

func (c *calendar) exec(query string, args ...any) {
	c.t.Helper()
	_, err := c.db.ExecContext(c.t.Context(), query, args...)
	check(c.t, err)
}

// tasks returns the tasks of one recurring task in order, as "time status".
func (c *calendar) tasks(name string) []string {
	c.t.Helper()
	found, err := c.db.QueryContext(c.t.Context(), "SELECT id, status FROM rabbitdelay_tasks WHERE id LIKE ? ORDER BY id", name+"@%")
	check(c.t, err)
	defer func() { check(c.t, found.Close()) }()
	var list []string
	for found.Next() {
		var id, status string
		check(c.t, found.Scan(&id, &status))
		list = append(list, strings.TrimPrefix(id, name+"@")+" "+status)
	}
	check(c.t, found.Err())
	return list
}

func (c *calendar) expect(name string, want ...string) {
	c.t.Helper()
	if got := c.tasks(name); !slices.Equal(got, want) {
		c.t.Fatalf("at %s: got the tasks\n  %s\nwant\n  %s", c.now.Format(time.RFC3339), strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (c *calendar) get(name string) *rows.Schedule {
	c.t.Helper()
	conn, err := c.planners[0].DB.Conn(c.t.Context())
	check(c.t, err)
	s, err := Get(c.t.Context(), conn, name)
	check(c.t, err)
	return s
}

func toQ() rows.Task { return rows.Task{Content: rows.Content{Queue: "q", Body: []byte("x")}} }
