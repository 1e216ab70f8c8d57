package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// documentedRights returns the table privileges that docs/permissions.md lists, by part and table.
func documentedRights(t *testing.T) map[string]map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/permissions.md")
	suite.MustSucceed(t, err)
	_, rest, _ := strings.Cut(string(page), "\n| part |")
	head, rest, _ := strings.Cut(rest, "\n")
	_, rest, _ = strings.Cut(rest, "\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	tables := cells(strings.ReplaceAll(head, "`", ""))
	out := map[string]map[string][]string{}
	for line := range strings.Lines(table) {
		row := cells(strings.TrimPrefix(strings.TrimSpace(line), "|"))
		rights := map[string][]string{}
		for i, list := range row[1:] {
			if list != "" {
				rights[tables[i]] = strings.Split(list, ", ")
			}
		}
		out[row[0]] = rights
	}
	return out
}

// cells returns the cells of a row of a Markdown table, without the first bar.
func cells(row string) []string {
	list := strings.Split(strings.TrimSuffix(strings.TrimSpace(row), "|"), "|")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// rightsUser is a database user that has only the rights of a test.
type rightsUser struct {
	owner businessDB
	db    businessDB
	name  string // the user's name in the syntax of GRANT
}

func newRightsUser(t *testing.T, owner businessDB) rightsUser {
	t.Helper()
	name := fmt.Sprintf("rd_user_%d_%d", os.Getpid(), databaseNumber.Add(1))
	u := rightsUser{owner, owner, name}
	driver := "mysql"
	if owner.dialect == schedule.PostgreSQL {
		driver = "pgx"
		owner.mustExec(t, "CREATE ROLE "+name+" LOGIN PASSWORD 'opensesame'")
		before, after, _ := strings.Cut(owner.dsn, "@")
		scheme, _, _ := strings.Cut(before, "://")
		u.db.dsn = scheme + "://" + name + ":opensesame@" + after
	} else {
		u.name = "'" + name + "'@'%'"
		owner.mustExec(t, "CREATE USER "+u.name+" IDENTIFIED BY 'opensesame'")
		cfg, err := mysql.ParseDSN(owner.dsn)
		suite.MustSucceed(t, err)
		cfg.User, cfg.Passwd = name, "opensesame"
		u.db.dsn = cfg.FormatDSN()
		// A user without any right cannot log in to MySQL.
		owner.mustExec(t, "CREATE TABLE IF NOT EXISTS nothing (a INTEGER)")
		owner.mustExec(t, "GRANT SELECT ON nothing TO "+u.name)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if owner.dialect == schedule.PostgreSQL {
			_, _ = owner.ExecContext(ctx, "DROP OWNED BY "+name)
			_, _ = owner.ExecContext(ctx, "DROP ROLE "+name)
		} else {
			_, _ = owner.ExecContext(ctx, "DROP USER "+u.name)
		}
	})
	db, err := sql.Open(driver, u.db.dsn)
	suite.MustSucceed(t, err)
	t.Cleanup(func() { _ = db.Close() })
	u.db.DB = db
	return u
}

func (u rightsUser) grant(t *testing.T, right, table string) {
	t.Helper()
	u.owner.mustExec(t, "GRANT "+right+" ON "+table+" TO "+u.name)
}

func (u rightsUser) revoke(t *testing.T, right, table string) {
	t.Helper()
	u.owner.mustExec(t, "REVOKE "+right+" ON "+table+" FROM "+u.name)
}

// Each part of a system can do its work with the rights that docs/permissions.md lists for it, and fails if any one of
// them is missing.
func TestDatabaseRights(t *testing.T) {
	t.Parallel()
	documented := documentedRights(t)
	parts := map[string]func(x *rightsWork) error{
		"writer": (*rightsWork).write, "recurring writer": (*rightsWork).recur, "handler of tasks": (*rightsWork).handle,
		"handler with idempotency": (*rightsWork).once, "relay": (*rightsWork).relay, "viewer": (*rightsWork).view, "operator": (*rightsWork).operate,
		"console": (*rightsWork).console,
	}
	if len(documented) != len(parts) {
		t.Fatalf("docs/permissions.md has %d parts, want %d", len(documented), len(parts))
	}
	eachDatabase(t, func(t *testing.T, db businessDB) {
		t.Parallel()
		if db.dialect == schedule.SQLite {
			t.Skip("SQLite has no users")
		}
		suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
		suite.MustSucceed(t, idempotency.Migrate(t.Context(), db.DB))
		for part, work := range parts {
			u := newRightsUser(t, db)
			x := &rightsWork{t: t, owner: db, db: u.db}
			for table, rights := range documented[part] {
				for _, right := range rights {
					u.grant(t, right, table)
				}
			}
			if err := work(x); err != nil {
				t.Errorf("%s: got %v, want no error", part, err)
				continue
			}
			for table, rights := range documented[part] {
				for _, right := range rights {
					if part == "handler with idempotency" && right == "SELECT" && db.dialect == schedule.MySQL {
						continue // unlike ON CONFLICT, INSERT IGNORE does not need it
					}
					u.revoke(t, right, table)
					needed := part != "relay" && part != "console" || table != "rabbitdelay_relays" // these two parts work without that table
					if err := work(x); errors.Is(err, schedule.ErrDenied) != needed || err != nil && !needed {
						want := map[bool]error{true: schedule.ErrDenied, false: nil}[needed]
						t.Errorf("%s without %s on %s: got error %v, want %v", part, right, table, err, want)
					}
					u.grant(t, right, table)
				}
			}
		}
	})
}

// rightsWork does the work of each part with the user's rights. Every call uses new tasks.
type rightsWork struct {
	t     *testing.T
	owner businessDB
	db    businessDB
	site  *serving // the console
	n     int
}

func (x *rightsWork) store(db businessDB, sender schedule.Sender) *schedule.Store {
	s, err := schedule.New(db.DB, sender, schedule.Config{
		Dialect: db.dialect, PollInterval: 10 * time.Millisecond, SweepInterval: 10 * time.Millisecond, MaxSends: 1,
	})
	suite.MustSucceed(x.t, err)
	return s
}

func (x *rightsWork) task(name string) schedule.Task {
	x.n++
	return schedule.Task{ID: fmt.Sprintf("%s-%d-%d", name, x.n, databaseNumber.Add(1)), Queue: "q", DeliverAt: time.Now().Add(time.Hour), Tags: []string{"tag"}}
}

// owned schedules a task as the owner of the tables.
func (x *rightsWork) owned(task schedule.Task) schedule.Task {
	suite.MustSucceed(x.t, x.store(x.owner, nil).Schedule(x.t.Context(), schedule.NoTx, task))
	return task
}

// first returns the error of the first step that fails.
func first(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (x *rightsWork) write() error {
	s, ctx, a, b := x.store(x.db, nil), x.t.Context(), x.task("write"), x.task("write")
	return first(
		func() error { return s.Schedule(ctx, schedule.NoTx, a) },
		func() error { return s.Schedule(ctx, schedule.NoTx, replacing(a)) },
		func() error { return s.Reschedule(ctx, schedule.NoTx, a.ID, a.DeliverAt.Add(time.Hour)) },
		func() error { return s.RunNow(ctx, schedule.NoTx, a.ID) },
		func() error {
			_, err := s.ScheduleUnique(ctx, schedule.NoTx, schedule.Task{
				UniqueKey: "k", Queue: "q", DeliverAt: time.Now(),
			}, schedule.Unique{OnConflict: schedule.ReplacePending, Cooldown: time.Hour})
			return err
		},
		func() error { return s.Cancel(ctx, schedule.NoTx, a.ID) },
		func() error { return s.Schedule(ctx, schedule.NoTx, b) },
		func() error {
			_, err := s.Bulk(ctx, schedule.Filter{Tag: "tag", IDPrefix: b.ID}, schedule.BulkCancel(), schedule.BulkOptions{})
			return err
		},
	)
}

func (x *rightsWork) recur() error {
	c, ctx := x.store(x.db, nil).Recurring(), x.t.Context()
	r := schedule.Recurring{Name: x.task("nightly").ID, Every: time.Hour, Task: schedule.Task{Queue: "q", Tags: []string{"tag"}}}
	return first(
		func() error { return c.Add(ctx, schedule.NoTx, r) },
		func() error { return c.Pause(ctx, schedule.NoTx, r.Name) },
		func() error { return c.Resume(ctx, schedule.NoTx, r.Name) },
		func() error { _, err := c.RunNow(ctx, schedule.NoTx, r.Name); return err },
		func() error { return c.Delete(ctx, schedule.NoTx, r.Name) },
		func() error {
			return x.store(x.db, nil).Schedule(ctx, schedule.NoTx, replacing(x.task("replaced")))
		},
	)
}

func (x *rightsWork) handle() error {
	ctx := x.t.Context()
	past := time.Now().Add(-time.Second)
	deliver := func(h amqpx.Handler, exchange string, redelivered bool) error {
		task := x.task("handle")
		task.DeliverAt = past
		if exchange != "" {
			task.Queue, task.Exchange = "", exchange
		}
		x.owned(task)
		return h(ctx, &amqpx.Delivery{ID: task.ID, Version: 1, Queue: "q", Attempt: 1, MaxAttempts: 3, DueAt: past, Redelivered: redelivered})
	}
	plain := schedule.Handler(x.db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }, schedule.WithDialect(x.db.dialect))
	lease := schedule.LeaseHandler(x.db.DB, func(context.Context, *amqpx.Delivery, string) (schedule.Func, error) {
		return nil, nil
	}, schedule.WithDialect(x.db.dialect))
	return first(
		func() error { return deliver(plain, "", false) },
		func() error { return deliver(plain, "events", true) },
		func() error { return deliver(lease, "", false) },
	)
}

func (x *rightsWork) once() error {
	h := idempotency.Handler(x.db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }, idempotency.WithDialect(x.db.dialect))
	d := &amqpx.Delivery{ID: x.task("once").ID, Queue: "q", Attempt: 1}
	return first(
		func() error { return h(x.t.Context(), d) },
		func() error { return h(x.t.Context(), d) },
	)
}

// relay runs until a task was sent, one was swept, finished tasks were purged and a recurring task has its first
// occurrence.
func (x *rightsWork) relay() error {
	var out outbox
	s := x.store(x.db, &out)
	owner := x.store(x.owner, nil)
	fresh, name, old := x.task("relay"), x.task("hourly").ID, x.task("old")
	fresh.DeliverAt = time.Now()
	x.owned(fresh)
	suite.MustSucceed(x.t, owner.Recurring().Add(x.t.Context(), schedule.NoTx, schedule.Recurring{
		Name: name, Every: time.Hour, Task: schedule.Task{Queue: "q", Tags: []string{"tag"}},
	}))
	x.owned(old)
	x.owner.mustExec(x.t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 1 WHERE id = ?", old.ID)
	x.owner.mustExec(x.t, "INSERT INTO rabbitdelay_effects (task_id, version, created_at, queue, updated_at) VALUES (?, 1, 1, 'q', 1)", old.ID)
	x.owner.mustExec(x.t, "UPDATE rabbitdelay_schedules SET plan_at = 0 WHERE name = ?", name)
	ctx, cancel := context.WithCancel(x.t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(5 * time.Millisecond):
		}
		if out.count(fresh.ID) > 0 && x.owner.queryInt(x.t, "SELECT COUNT(*) FROM rabbitdelay_effects WHERE task_id = ?", old.ID) == 0 &&
			x.owner.queryInt(x.t, "SELECT COUNT(*) FROM rabbitdelay_schedules WHERE name = ? AND last_at IS NOT NULL", name) == 1 {
			break
		}
		if err := s.Health(); err != nil && !errors.Is(err, schedule.ErrNotRunning) {
			cancel()
			return errors.Join(err, <-ended)
		}
	}
	cancel()
	return <-ended
}

func (x *rightsWork) view() error {
	s, ctx := x.store(x.db, nil), x.t.Context()
	task := x.owned(x.task("view"))
	return first(
		func() error { _, err := s.Get(ctx, schedule.NoTx, task.ID); return err },
		func() error { return each(s.List(ctx, schedule.NoTx, schedule.Filter{Tag: "tag", IDPrefix: task.ID})) },
		func() error { _, err := s.Count(ctx, schedule.NoTx, schedule.Filter{}); return err },
		func() error { return each(s.Recurring().List(ctx, schedule.NoTx)) },
		func() error { return x.reads("rabbitdelay_effects") },
		func() error { return x.reads("rabbitdelay_processed") },
		func() error { _, err := x.db.view(x.t).Relays(ctx); return err },
		func() error { _, err := s.Destinations(ctx, schedule.NoTx); return err },
	)
}

func (x *rightsWork) operate() error {
	s, ctx := x.store(x.db, nil), x.t.Context()
	return first(x.write, x.recur,
		func() error {
			task := x.owned(x.task("delete"))
			x.owner.mustExec(x.t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 1 WHERE id = ?", task.ID)
			_, err := s.Bulk(ctx, schedule.Filter{IDPrefix: task.ID, Status: schedule.StatusDone}, schedule.BulkDelete(), schedule.BulkOptions{})
			return err
		},
		func() error { return x.reads("rabbitdelay_effects") },
		func() error { return x.reads("rabbitdelay_processed") },
		func() error { _, err := x.db.view(x.t).Relays(ctx); return err },
		func() error {
			return s.Pause(ctx, schedule.NoTx, topology.Destination{Queue: x.task("paused").ID}, "operator")
		},
	)
}

// console uses the API to change tasks, recurring tasks and the audit log, and to read everything.
func (x *rightsWork) console() error {
	x.owner.mustExec(x.t, "DELETE FROM rabbitdelay_audit WHERE id = '0'") // from the previous run
	x.owner.mustExec(x.t,
		"INSERT INTO rabbitdelay_audit (id, at, who, action, detail, error, result, request, place) VALUES ('0', 0, 'x', 'x', '', '', '', '', '')")
	x.owner.mustExec(x.t, "DELETE FROM rabbitdelay_audit_tasks WHERE audit_id = '0'")
	x.owner.mustExec(x.t, "INSERT INTO rabbitdelay_audit_tasks (audit_id, task_id) VALUES ('0', 'x')")
	x.owner.mustExec(x.t, "DELETE FROM rabbitdelay_history")
	x.owner.mustExec(x.t, "INSERT INTO rabbitdelay_history (width_ms, begins_at, done, failed, retries, late) VALUES (3600000, 0, 0, 0, 0, '[]')")
	if x.site == nil { // while the user has every right
		x.site = startServing(x.t, x.db, "--no-relay")
	}
	ask := func(method, path, body string) func() error {
		return func() error {
			code, out := x.site.ask(method, "/api/v1"+path, body)
			text := fmt.Sprint(out)
			switch {
			case code < 300 && !strings.Contains(text, "old audit entries cannot be deleted") &&
				!strings.Contains(text, "the history of ended tasks cannot be updated"):
			case strings.Contains(text, "lacks a permission"):
				return fmt.Errorf("%s %s: %w: %s", method, path, schedule.ErrDenied, text)
			default:
				return fmt.Errorf("%s %s: %d %s", method, path, code, text)
			}
			if started, ok := out["job"].(map[string]any); ok && out["matching"] == 5. {
				return x.job(started["id"].(string))
			}
			return nil
		}
	}
	task, finished, name := x.task("console").ID, x.owned(x.task("finished")).ID, x.task("nightly").ID
	x.owner.mustExec(x.t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 1 WHERE id = ?", finished)
	return first(
		ask("PUT", "/tasks/"+task, `{"queue":"q","due":"1h","tags":["tag"]}`),
		ask("PUT", "/tasks/"+task+"?replace=true", `{"queue":"q","due":"2h"}`),
		ask("GET", "/tasks/"+task, ""),
		ask("GET", "/tasks?tag=tag", ""),
		ask("POST", "/tasks/bulk", `{"action":"reschedule-by","by":"1h","filter":{"id_prefix":"`+task+`"},"count":5}`),
		ask("POST", "/tasks/bulk", `{"action":"delete","filter":{"id_prefix":"`+finished+`"},"count":5}`),
		ask("POST", "/tasks/"+task+"/cancel", ""),
		ask("PUT", "/recurring/"+name, `{"every":"1h","queue":"q","tags":["tag"]}`),
		ask("POST", "/recurring/"+name+"/pause", ""),
		ask("POST", "/destinations/pause", `{"queue":"`+name+`"}`),
		ask("DELETE", "/recurring/"+name, ""),
		ask("GET", "/audit", ""),
		ask("GET", "/audit?target="+task, ""),
		func() error { return x.purged(ask) },
	)
}

// purged waits until a new console has deleted an old entry of the audit log and of the history, or has logged why it
// cannot. A console does that when it starts, and then every ten minutes.
func (x *rightsWork) purged(ask func(method, path, body string) func() error) error {
	x.site.kill()
	x.site = startServing(x.t, x.db, "--no-relay")
	for {
		if err := ask("GET", "/overview", "")(); err != nil {
			return err
		}
		if x.owner.queryInt(x.t, "SELECT COUNT(*) FROM rabbitdelay_audit WHERE id = '0'")+
			x.owner.queryInt(x.t, "SELECT COUNT(*) FROM rabbitdelay_audit_tasks WHERE audit_id = '0'")+
			x.owner.queryInt(x.t, "SELECT COUNT(*) FROM rabbitdelay_history WHERE begins_at = 0") == 0 {
			return nil
		}
		<-time.After(5 * time.Millisecond)
	}
}

// job waits until a job is no longer running.
func (x *rightsWork) job(id string) error {
	for {
		code, j := x.site.ask(http.MethodGet, "/api/v1/jobs/"+id, "")
		text := fmt.Sprint(j)
		switch {
		case j["state"] == "done":
			return nil
		case strings.Contains(text, "lacks a permission"), j["state"] == "interrupted": // the result of the job cannot be recorded either
			return fmt.Errorf("job: %w: %s", schedule.ErrDenied, text)
		case j["state"] != "running":
			return fmt.Errorf("job: %d %s", code, text)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// reads runs the SQL that an operator would use.
func (x *rightsWork) reads(table string) error {
	rows, err := x.db.QueryContext(x.t.Context(), "SELECT * FROM "+table+" WHERE 1 = 0")
	if err != nil {
		if text := err.Error(); strings.Contains(text, "denied") {
			return fmt.Errorf("%w: %w", schedule.ErrDenied, err)
		}
		return err
	}
	defer func() { _ = rows.Close() }()
	return rows.Err()
}

func each[T any](list func(yield func(T, error) bool)) (err error) {
	list(func(_ T, e error) bool { err = e; return e == nil })
	return err
}

// A relay that loses a right reports it until the right is given back.
func TestRelayThatIsDenied(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		if db.dialect == schedule.SQLite {
			t.Skip("SQLite has no users")
		}
		suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
		u := newRightsUser(t, db)
		for table, rights := range documentedRights(t)["relay"] {
			for _, right := range rights {
				u.grant(t, right, table)
			}
		}
		x := &rightsWork{t: t, owner: db, db: u.db}
		var out outbox
		s := x.store(u.db, &out)
		stop := runStore(t, s)
		defer stop()
		send := func(id string) {
			task := schedule.Task{ID: id, Queue: "q", DeliverAt: time.Now()}
			x.owned(task)
			suite.Eventually(t, id+" is sent", func() bool { return out.count(id) == 1 })
		}
		send("before")
		seen := func(n int) bool {
			relays, err := db.view(t).Relays(t.Context())
			return err == nil && len(relays) == n && (n == 0 || relays[0].Running(time.Now()))
		}
		suite.Eventually(t, "the relay has a heartbeat row", func() bool { return seen(1) })
		u.revoke(t, "UPDATE", "rabbitdelay_tasks")
		x.owned(schedule.Task{ID: "denied", Queue: "q", DeliverAt: time.Now()})
		suite.Eventually(t, "Health reports the relay's fault", func() bool {
			e, ok := errors.AsType[*schedule.HealthError](s.Health())
			return ok && slices.ContainsFunc(e.Faults, func(f schedule.Fault) bool {
				return f.Part == "relay" && errors.Is(f.Err, schedule.ErrDenied) && !f.Since.IsZero()
			})
		})
		u.grant(t, "UPDATE", "rabbitdelay_tasks")
		suite.Eventually(t, "the denied task is sent", func() bool { return out.count("denied") >= 1 })
		suite.Eventually(t, "Health returns nil", func() bool { return s.Health() == nil })
		stop()
		if err := s.Health(); !errors.Is(err, schedule.ErrNotRunning) || !seen(0) {
			t.Errorf("after Run: got Health %v, want schedule.ErrNotRunning and no heartbeat row", err)
		}
	})
}
