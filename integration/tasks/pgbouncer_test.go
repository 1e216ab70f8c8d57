package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// pooler is a PgBouncer in front of a test's database.
type pooler struct {
	direct businessDB
	url    string
	log    func() string
}

func openPooler(t *testing.T, p database.Pooling) pooler {
	t.Helper()
	direct := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	s, err := database.StartPgBouncer(t.Context(), database.Shared(t, database.PostgreSQL), p)
	if errors.Is(err, database.ErrNotInstalled) {
		t.Skipf("skipped: %v", err)
	}
	suite.MustSucceed(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the pooler's last log lines:\n%s", s.Log())
		}
		suite.MustSucceed(t, s.Close())
	})
	u, err := url.Parse(direct.dsn)
	suite.MustSucceed(t, err)
	return pooler{direct: direct, log: s.Log, url: otherDatabase(t, idempotency.PostgreSQL, s.URL(), strings.TrimPrefix(u.Path, "/"))}
}

// at returns the pooler's URL with the given query mode for pgx, or without a mode if it is empty.
func (p pooler) at(mode string) string {
	if mode == "" {
		return p.url
	}
	return p.url + "default_query_exec_mode=" + mode
}

// openings lists the ways to open a database.
var openings = map[string]func(t *testing.T, u string) businessDB{
	"database/sql": func(t *testing.T, u string) businessDB {
		t.Helper()
		db, err := sql.Open("pgx", u)
		suite.MustSucceed(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return businessDB{DB: db, dialect: idempotency.PostgreSQL, dsn: u}
	},
	"pgx": func(t *testing.T, u string) businessDB {
		t.Helper()
		pool, err := pgxpool.New(t.Context(), u)
		suite.MustSucceed(t, err)
		t.Cleanup(pool.Close)
		return businessDB{dialect: idempotency.PostgreSQL, dsn: u, pool: pool}
	},
	"config": func(t *testing.T, u string) businessDB {
		t.Helper()
		db, dialect, err := config.OpenDB(config.URL(u))
		suite.MustSucceed(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return businessDB{DB: db, dialect: dialect, dsn: u}
	},
}

// In transaction mode everything works with the modes of pgx that keep no prepared statements, and a database that
// config opens needs no mode.
func TestPgBouncerTransactions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ opening, mode string }{
		{"database/sql", "exec"},
		{"database/sql", "cache_describe"},
		{"database/sql", "simple_protocol"},
		{"pgx", "exec"},
		{"pgx", "cache_describe"},
		{"pgx", "simple_protocol"},
		{"config", ""},
		{"config", "exec"},
	} {
		t.Run(c.opening+"/"+c.mode, func(t *testing.T) {
			t.Parallel()
			p := openPooler(t, database.Pooling{Mode: database.PerTransaction, Size: 2})
			// Several processes share the connections of the pooler.
			for _, process := range []string{"a", "b", "c"} {
				everythingWorks(t, openings[c.opening](t, p.at(c.mode)), process)
			}
		})
	}
}

// everythingWorks uses every feature of the tables, with ids that start with the given name.
func everythingWorks(t *testing.T, db businessDB, name string) {
	ctx, due := t.Context(), time.Now().Add(time.Hour)
	suite.MustSucceed(t, db.migrateRecords(ctx))
	var out outbox
	// A relay that stops cancels its running statement, which sometimes ends a PgBouncer older than 1.21. The relay
	// therefore polls rarely here.
	s := newStore(t, db, &out, schedule.Config{PollInterval: 300 * time.Millisecond})
	id := func(suffix string) string { return name + "-" + suffix }

	tx, commit, _ := db.begin(t)
	suite.MustSucceed(t, s.Schedule(ctx, tx, orderTask(id("cancelled"), due)))
	suite.MustSucceed(t, s.Schedule(ctx, tx, orderTask(id("moved"), due)))
	suite.MustSucceed(t, s.Cancel(ctx, tx, id("cancelled")))
	suite.MustSucceed(t, s.Reschedule(ctx, tx, id("moved"), time.Now()))
	commit()
	if err := s.Schedule(ctx, schedule.NoTx, orderTask(id("moved"), due)); !errors.Is(err, schedule.ErrExists) {
		t.Errorf("scheduling a task twice: got %v, want schedule.ErrExists", err)
	}
	unique := orderTask(id("unique"), due)
	unique.UniqueKey = name
	for _, want := range []schedule.UniqueOutcome{schedule.UniqueCreated, schedule.UniqueKept} {
		if got, err := s.ScheduleUnique(ctx, schedule.NoTx, unique, schedule.Unique{}); got.Outcome != want || err != nil {
			t.Errorf("ScheduleUnique: got %s (error %v), want %s", got.Outcome, err, want)
		}
	}
	batch := make([]schedule.Task, 300)
	for i := range batch {
		batch[i] = orderTask(fmt.Sprintf("%s-%03d", name, i), due)
	}
	suite.MustSucceed(t, s.ScheduleBatch(ctx, schedule.NoTx, batch))
	if n, err := s.CancelBatch(ctx, schedule.NoTx, []string{batch[0].ID, batch[1].ID}); n != 2 || err != nil {
		t.Errorf("cancelled %d tasks (error %v), want 2", n, err)
	}
	pending := 0
	for _, err := range s.List(ctx, schedule.NoTx, schedule.Filter{Status: schedule.StatusPending, IDPrefix: name + "-"}) {
		suite.MustSucceed(t, err)
		pending++
	}
	if pending != 300 {
		t.Errorf("%d tasks are pending, want 300", pending)
	}
	_, err := s.Recurring().Put(ctx, schedule.NoTx, schedule.Recurring{Name: name, Cron: "@hourly", Task: schedule.Task{Queue: "q"}})
	suite.MustSucceed(t, err)

	stop := runStore(t, s)
	suite.Eventually(t, "the relay sends the task", func() bool { return out.count(id("moved")) == 1 })
	nothing := txFunc(func(context.Context, schedule.Executor, *amqpx.Delivery) error { return nil })
	suite.MustSucceed(t, db.taskHandler(nothing)(ctx, &amqpx.Delivery{
		ID: id("moved"), Queue: "orders.expire", Version: taskOf(t, s, id("moved")).Version, DueAt: time.Now(),
	}))
	if got := taskOf(t, s, id("moved")); got.Status != schedule.StatusDone {
		t.Errorf("after its handler ran, the task is %s, want done", got.Status)
	}
	suite.MustSucceed(t, db.idempotentHandler(nothing)(ctx, &amqpx.Delivery{ID: id("message"), Queue: "q"}))
	if err := s.Health(); err != nil {
		t.Errorf("Health returned %v, want nil", err)
	}
	stop()
}

// Without a mode, pgx's prepared statements conflict with those of other processes. Every error says so and names the
// setting, whichever operation failed.
func TestPgBouncerPreparedStatements(t *testing.T) {
	t.Parallel()
	nothing := txFunc(func(context.Context, schedule.Executor, *amqpx.Delivery) error { return nil })
	task := orderTask("t", time.Now().Add(time.Hour))
	for _, opening := range []string{"database/sql", "pgx"} {
		t.Run(opening, func(t *testing.T) {
			t.Parallel()
			p := openPooler(t, database.Pooling{Mode: database.PerTransaction, Size: 1})
			suite.MustSucceed(t, p.direct.migrateTasks(t.Context()))
			suite.MustSucceed(t, p.direct.migrateRecords(t.Context()))
			for name, do := range map[string]func(db businessDB, s *schedule.Store) error{
				"migrating": func(db businessDB, _ *schedule.Store) error { return db.migrateTasks(t.Context()) },
				"scheduling": func(_ businessDB, s *schedule.Store) error {
					return s.Schedule(t.Context(), schedule.NoTx, replacing(task))
				},
				"scheduling in a transaction": func(db businessDB, s *schedule.Store) error {
					tx, _, rollback := db.begin(t)
					defer rollback()
					return s.Schedule(t.Context(), tx, replacing(task))
				},
				"reading": func(_ businessDB, s *schedule.Store) error {
					_, err := s.Count(t.Context(), schedule.NoTx, schedule.Filter{})
					return err
				},
				"cancelling": func(_ businessDB, s *schedule.Store) error {
					_, err := s.CancelBatch(t.Context(), schedule.NoTx, []string{"t"})
					return err
				},
				"recurring": func(_ businessDB, s *schedule.Store) error {
					_, err := s.Recurring().Put(t.Context(), schedule.NoTx, schedule.Recurring{Name: "r", Cron: "@hourly", Task: schedule.Task{Queue: "q"}})
					return err
				},
				"asking": func(_ businessDB, s *schedule.Store) error { return s.Ping(t.Context(), suite.Patience) },
				"a task's handler": func(db businessDB, _ *schedule.Store) error {
					return db.taskHandler(nothing)(t.Context(), &amqpx.Delivery{ID: "t", Queue: "orders.expire", Version: 1, DueAt: time.Now()})
				},
				"an idempotent handler": func(db businessDB, _ *schedule.Store) error {
					return db.idempotentHandler(nothing)(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"})
				},
				"purging": func(db businessDB, _ *schedule.Store) error {
					_, err := db.purgeRecords(t.Context(), time.Hour, 10)
					return err
				},
			} {
				// An earlier process has left prepared statements on the pooler's only connection. A process that fails may
				// remove some of them.
				failed := 0
				for range 3 {
					db := openings[opening](t, p.at(""))
					s, err := db.newStore(&outbox{}, schedule.Config{})
					suite.MustSucceed(t, err)
					err = do(db, s)
					if err == nil {
						continue
					}
					failed++
					if !errors.Is(err, schedule.ErrPooler) {
						t.Errorf("%s: got %v, want %v", name, err, schedule.ErrPooler)
					}
					if want := "default_query_exec_mode=exec"; !strings.Contains(err.Error(), want) {
						t.Errorf("%s: got error %v, want an error containing %q", name, err, want)
					}
					if n := strings.Count(err.Error(), "PgBouncer"); n != 1 {
						t.Errorf("%s: the error names PgBouncer %d times, want once: %v", name, n, err)
					}
				}
				if failed == 0 {
					t.Errorf("%s: 0 of 3 processes failed, want at least one", name)
				}
			}
		})
	}
}

// Commands work through PgBouncer without any setting. With the mode that uses prepared statements, each command fails
// with an error that names the setting.
func TestPgBouncerProgram(t *testing.T) {
	t.Parallel()
	p := openPooler(t, database.Pooling{Mode: database.PerTransaction, Size: 1})
	for _, mode := range []string{"", "exec", "cache_describe"} {
		for _, command := range []string{
			"migrate", "tasks add --id a" + mode + " --queue q --delay 1h", "tasks list", "tasks show a" + mode,
			"tasks count", "tasks cancel a" + mode, "schedules list",
		} {
			if r := suite.RunCLI(t.Context(), append(strings.Fields(command), "--db", p.at(mode))...); r.Code != 0 {
				t.Errorf("mode %q: %s: got %s, want exit code 0", mode, command, r)
			}
		}
	}
	for _, command := range []string{"tasks list", "tasks list", "migrate", "tasks add --queue q --delay 1h", "tasks cancel a"} {
		r := suite.RunCLI(t.Context(), append(strings.Fields(command), "--db", p.at("cache_statement"))...)
		if r.Code == 0 && command == "tasks list" { // it prepares statements, and the next commands conflict with them
			continue
		}
		if r.Code != 1 || !strings.Contains(r.Stderr, "add default_query_exec_mode=exec to the database URL") {
			t.Errorf(`%s: got %s, want exit code 1 and Stderr with "add default_query_exec_mode=exec to the database URL"`, command, r)
		}
	}
}

// A relay behind a pooler in transaction mode polls, logs that once, and is healthy. In session mode it is notified.
func TestPgBouncerListens(t *testing.T) {
	t.Parallel()
	for mode, notified := range map[database.PoolMode]bool{database.PerTransaction: false, database.PerSession: true} {
		for _, opening := range []string{"pgx", "config"} {
			t.Run(fmt.Sprintf("%s/%s", mode, opening), func(t *testing.T) {
				t.Parallel()
				// In session mode, each connection that the database keeps open occupies one of the pooler's, so that
				// the listener would have to wait with a small pool.
				p := openPooler(t, database.Pooling{Mode: mode, Size: 40})
				suite.MustSucceed(t, p.direct.migrateTasks(t.Context()))
				core, logged := observer.New(zap.WarnLevel)
				cfg := schedule.Config{PollInterval: 100 * time.Millisecond, Logger: zap.New(core)}
				if notified {
					cfg.PollInterval = time.Hour // so that only a notification can cause a task to be sent
				}
				db := openings[opening](t, p.at("exec"))
				if opening == "config" {
					l, err := config.Listener(config.URL(p.url))
					suite.MustSucceed(t, err)
					cfg.Listener = l
				}
				var out outbox
				s, err := db.newStore(&out, cfg)
				suite.MustSucceed(t, err)
				stop := runStore(t, s)
				defer stop()
				said := func() int { return logged.FilterMessageSnippet("cannot receive notifications").Len() }
				if !notified {
					suite.Eventually(t, "the relay logs that it polls", func() bool { return said() == 1 })
				}
				unexpected := func() int { return strings.Count(p.log(), "got packet 'A' from server when not linked") }
				before := unexpected()
				// The relay may find the first two tasks without a notification, when it starts and when it starts to listen.
				for _, id := range []string{"first", "second", "third", "fourth"} {
					p.direct.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', 1)", id)
					suite.Eventually(t, id+" is sent", func() bool { return out.count(id) == 1 })
				}
				if n := said(); n != 0 && notified || n != 1 && !notified {
					t.Errorf("the relay logged %d times that it polls, want 1 without notifications and 0 with them (notifications: %t)", n, notified)
				}
				if n := unexpected() - before; n > 0 {
					t.Errorf("the pooler logged %d notifications without a client for them, want 0", n)
				}
				if err := s.Health(); err != nil {
					t.Errorf("Health returned %v, want nil", err)
				}
			})
		}
	}
}

// The tables may be in any schema, and statements may have a time limit. A direct connection reads both from the URL.
// PgBouncer refuses such a URL, so behind it they are settings of the database.
func TestSchemaAndTimeouts(t *testing.T) {
	t.Parallel()
	used := func(t *testing.T, db businessDB) {
		t.Helper()
		if n := db.queryInt(t, "SELECT COUNT(*) FROM app.rabbitdelay_tasks"); n == 0 {
			t.Error("the schema app contains 0 tasks, want at least 1")
		}
	}
	const settings = "search_path=app&statement_timeout=60000&lock_timeout=60000&idle_in_transaction_session_timeout=60000"
	for name, open := range openings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
			direct.mustExec(t, "CREATE SCHEMA app")
			everythingWorks(t, open(t, direct.dsn+settings), "a")
			used(t, direct)
		})
	}
	t.Run("PgBouncer", func(t *testing.T) {
		t.Parallel()
		p := openPooler(t, database.Pooling{Mode: database.PerTransaction, Size: 2})
		r := suite.RunCLI(t.Context(), "tasks", "list", "--db", p.at("exec")+"&"+settings)
		if r.Code != 1 {
			t.Errorf("with the settings: exit code %d, want 1: %s", r.Code, r)
		}
		if want := "unsupported startup parameter"; !strings.Contains(r.Stderr, want) {
			t.Errorf("with the settings: got %s, want Stderr containing %q", r, want)
		}
		p.direct.mustExec(t, "CREATE SCHEMA app")
		for setting := range strings.SplitSeq(settings, "&") {
			key, value, _ := strings.Cut(setting, "=")
			p.direct.mustExec(t, "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+key+" = "+value+"', current_database()); END $do$")
		}
		everythingWorks(t, openings["config"](t, p.at("")), "a")
		used(t, p.direct)
	})
}

// rabbitdelay serve behind PgBouncer is ready, relays rows that other programs write, and logs that it polls.
func TestPgBouncerServe(t *testing.T) {
	t.Parallel()
	p := openPooler(t, database.Pooling{Mode: database.PerTransaction, Size: 2})
	suite.MustSucceed(t, p.direct.migrateTasks(t.Context()))
	suite.MustSucceed(t, p.direct.migrateRecords(t.Context()))
	broker := amqptest.NewServer(amqptest.Options{})
	t.Cleanup(broker.Close)
	at, err := broker.Listen()
	suite.MustSucceed(t, err)
	ports, err := loopback.Ports(1)
	suite.MustSucceed(t, err)
	log := filepath.Join(t.TempDir(), "log")
	written, err := os.Create(log)
	suite.MustSucceed(t, err)
	defer written.Close()
	process := suite.Command(t, "serve", "--db", p.at(""), "--url", at, "--listen", loopback.Address(ports[0]))
	process.Stderr = written
	suite.MustSucceed(t, process.Start())
	s := &serving{t: t, url: "http://" + loopback.Address(ports[0]), process: process}
	t.Cleanup(s.kill)
	said := func() int {
		text, err := os.ReadFile(log)
		suite.MustSucceed(t, err)
		return strings.Count(string(text), "the relay cannot receive notifications about tasks")
	}
	suite.Eventually(t, "serve logs that it polls", func() bool { return said() == 1 })
	p.direct.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('a', 'q', 1)")
	suite.Eventually(t, "the task is sent", func() bool {
		return p.direct.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE id = 'a' AND sends > 0") == 1
	})
	if code, out := s.ask(http.MethodGet, "/readyz", ""); code != http.StatusOK {
		t.Errorf("readyz: got %d %v, want 200", code, out)
	}
	if n := said(); n != 1 {
		t.Errorf("serve logged %d times that it polls, want 1", n)
	}
}
