package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If a handler's snapshot is older than a call that schedules a unique key, the handler does not complete the task that
// holds the key, whether or not the call has rescheduled that task.
func TestUniqueStatementsEndOlderSnapshots(t *testing.T) {
	t.Parallel()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	newStore(t, db, nil, schedule.Config{})
	doc := documented(t, db.dialect)
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, name := range []string{"keep", "replace", "push back"} {
			statement := doc["schedule with a unique key, "+name]
			db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
			named(t, db, statement, map[string]any{"id": "a"})
			// The task was created a minute before its due time, so it cannot be pushed back.
			db.mustExec(t, "UPDATE rabbitdelay_tasks SET due_at = created_at + 60000")
			handler, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			suite.MustSucceed(t, err)
			var due, created int64
			suite.MustSucceed(t, handler.QueryRowContext(t.Context(), "SELECT due_at, created_at FROM rabbitdelay_tasks").Scan(&due, &created))
			named(t, db, statement, map[string]any{"id": "b"})
			values, args := map[string]any{"id": "a", "version": 1, "created": created, "due": due}, []any{}
			query := db.bind(namedQuery(doc["consume"], func(name string) { args = append(args, values[name]) }))
			if _, err := handler.ExecContext(t.Context(), query, args...); err == nil || !undone(err) {
				t.Errorf("%v, %s: consuming with an older snapshot: got error %v, want a serialization failure or deadlock", level, name, err)
			}
			suite.MustSucceed(t, handler.Rollback())
		}
	}
}

// Every documented statement stores exactly the bytes of a body, given as a text parameter and as a literal.
func TestBodiesBySQL(t *testing.T) {
	t.Parallel()
	literal := regexp.MustCompile(`'\{"(?:order|post|product)":\d+\}'`)
	bodies := []string{`{"re":"a\\d+"}`, `{"q":"a \"b\""}`, `{"n":"a\nb"}`, `{"u":"\u5f20"}`, `\x00`, `\`, "", "张"}
	eachDatabase(t, func(t *testing.T, db businessDB) {
		newStore(t, db, nil, schedule.Config{})
		for name, statement := range documented(t, db.dialect) {
			if !literal.MatchString(statement) {
				continue
			}
			statement = strings.NewReplacer("'order-42-expire'", ":id", "'post-7'", ":id").Replace(statement)
			for i, body := range bodies {
				db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
				id := fmt.Sprint("t", i)
				named(t, db, literal.ReplaceAllLiteralString(statement, ":body"), map[string]any{"id": id, "body": body})
				if got := rowOf(t, db, id)["body"]; got != body {
					t.Errorf("%s with the body as a parameter: stored body is %q, want %q", name, got, body)
				}
				if db.dialect == idempotency.MySQL {
					continue // its literals have different escapes
				}
				db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
				query := db.bind(namedQuery(literal.ReplaceAllLiteralString(statement, "'BODY'"), func(string) {}))
				_, err := db.ExecContext(t.Context(), strings.Replace(query, "BODY", strings.ReplaceAll(body, "'", "''"), 1), id)
				suite.MustSucceed(t, err)
				if got := rowOf(t, db, id)["body"]; got != body {
					t.Errorf("%s with the body as a literal: stored body is %q, want %q", name, got, body)
				}
			}
		}
	})
}

// A refused task leaves no row, so its id can be used after the cooldown, and the caller's transaction
// continues.
func TestRefusedTasksLeaveNoRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		hour := schedule.Unique{Cooldown: time.Hour}
		first, err := s.ScheduleUnique(t.Context(), schedule.NoTx, keyed(0), hour)
		suite.MustSucceed(t, err)
		refused := make(chan error, 1)
		schedules := func() error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			task := keyed(0)
			task.ID = "refused"
			r, err := s.ScheduleUnique(t.Context(), tx, task, hour)
			if err == nil && r.Outcome != schedule.UniqueRefused {
				err = fmt.Errorf("got %+v, want Outcome = schedule.UniqueRefused", r)
			}
			if err == nil {
				err = s.Schedule(t.Context(), tx, schedule.Task{ID: "beside", Queue: "q", DeliverAt: time.Now()})
			}
			if err != nil {
				return err
			}
			return tx.Commit()
		}
		handle := schedule.Handler(db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error {
			go func() {
				err := schedules()
				for err != nil && undone(err) { // on SQLite, because its transactions start with a read lock
					err = schedules()
				}
				refused <- err
			}()
			<-time.After(300 * time.Millisecond) // so that it most likely waits; the outcome is the same if not
			return nil
		})
		suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: first.ID, Queue: "q", Version: 1, DueAt: taskOf(t, s, first.ID).DeliverAt}))
		suite.MustSucceed(t, <-refused)
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE id = 'refused'"); n != 0 {
			t.Errorf("%d rows for the refused task, want 0", n)
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE id = 'beside'"); n != 1 {
			t.Errorf("%d rows for the task scheduled in the same transaction, want 1", n)
		}
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET finished_at = finished_at - 3600001 WHERE status = 'done'")
		again := keyed(0)
		again.ID = "refused"
		r, err := s.ScheduleUnique(t.Context(), schedule.NoTx, again, hour)
		if err != nil || r.Outcome != schedule.UniqueCreated {
			t.Errorf("after the cooldown: got %+v, %v, want no error and Outcome = schedule.UniqueCreated", r, err)
		}
	})
}

// A pause of an exchange skips only a task that a handler is working on. SQLite has one writer, so a pause waits for the
// handler.
func TestPausePassesOverHandlersOfAnExchange(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { testPausePassesOver(t, openServer(t, idempotency.PostgreSQL, database.PostgreSQL)) })
	eachMySQL(t, testPausePassesOver)
}

func testPausePassesOver(t *testing.T, db businessDB) {
	t.Helper()
	var out outbox
	s := newStore(t, db, &out, schedule.Config{PollInterval: 20 * time.Millisecond, Grace: time.Hour})
	runStore(t, s)
	due := time.Now().Truncate(time.Millisecond)
	for _, id := range []string{"worked-on", "waiting"} {
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Exchange: "events", DeliverAt: due}))
	}
	suite.Eventually(t, "both are marked as sent", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") == 2
	})
	runs := 0
	handle := schedule.Handler(db.DB, func(ctx context.Context, _ *sql.Tx, _ *amqpx.Delivery) error {
		runs++
		suite.MustSucceed(t, s.Pause(ctx, schedule.NoTx, topology.Destination{Exchange: "events"}, "me"))
		suite.Eventually(t, "the other task is recalled", func() bool { return taskOf(t, s, "waiting").Version == 2 })
		return nil
	})
	suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: "worked-on", Queue: "q", Exchange: "events", Version: 1, DueAt: due}))
	if got := taskOf(t, s, "worked-on"); runs != 1 || got.Status != schedule.StatusDone || got.Version != 1 {
		t.Errorf("the task that a handler was working on: got %d runs, %s in version %d, want 1 run, done in version 1", runs, got.Status, got.Version)
	}
}

// A pause of an exchange while a handler works lets the handler finish. It neither loses an effect nor causes a second
// one.
func TestPauseWhileAHandlerOfAnExchangeWorks(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		var out outbox
		s := newStore(t, db, &out, schedule.Config{PollInterval: 20 * time.Millisecond, Grace: time.Hour})
		runStore(t, s)
		db.mustExec(t, "CREATE TABLE did (version int NOT NULL)")
		events := topology.Destination{Exchange: "events"}
		due := time.Now().Truncate(time.Millisecond)
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "t", Exchange: "events", DeliverAt: due}))
		sent := func() bool {
			return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0 OR status = 'done'") == 1
		}
		suite.Eventually(t, "the task is marked as sent", sent)
		paused := make(chan error, 1)
		pause := func() { paused <- s.Pause(t.Context(), schedule.NoTx, events, "me") }
		handle := db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			if d.Version == 1 {
				go pause() // SQLite has one writer, so it waits for this transaction
				if db.dialect != idempotency.SQLite {
					suite.MustSucceed(t, <-paused)
					paused <- nil
				}
			}
			_, err := tx.ExecContext(ctx, db.bind("INSERT INTO did (version) VALUES (?)"), d.Version)
			return err
		})
		delivery := func() *amqpx.Delivery {
			return &amqpx.Delivery{ID: "t", Queue: "q", Exchange: "events", Version: taskOf(t, s, "t").Version, DueAt: due}
		}
		suite.MustSucceed(t, handle(t.Context(), delivery()))
		suite.MustSucceed(t, <-paused)
		got := taskOf(t, s, "t")
		if got.Status != schedule.StatusDone {
			t.Errorf("the task is %s in version %d, want done", got.Status, got.Version)
		}
		suite.MustSucceed(t, s.Resume(t.Context(), schedule.NoTx, events, 0))
		suite.Eventually(t, "the task is done or sent again", sent)
		suite.MustSucceed(t, handle(t.Context(), delivery()))
		if n := db.queryInt(t, "SELECT COUNT(*) FROM did"); n != 1 || taskOf(t, s, "t").Status != schedule.StatusDone {
			t.Errorf("got %d effects and a task that is %s, want 1 and done", n, taskOf(t, s, "t").Status)
		}
	})
}

// A session that keeps a rate limit locked is reported, with its identity where the database provides it. The server
// ends a claim that hangs, so that other relays send its tasks. SQLite is not tested, because a session that has a row
// locked there stops all writers.
func TestLockedRateLimits(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		testLockedRateLimits(t, openServer(t, idempotency.PostgreSQL, database.PostgreSQL), lockedRateLimits{
			holder: "pg_terminate_backend",
			bound:  "current_setting('idle_in_transaction_session_timeout')", bounded: "10s", usual: "0",
			trigger: []string{
				"CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " +
					"INSERT INTO seen VALUES (current_setting('idle_in_transaction_session_timeout')); RETURN NEW; END $$",
				"CREATE TRIGGER see BEFORE UPDATE OF free_at ON rabbitdelay_destinations FOR EACH ROW EXECUTE FUNCTION see()",
			},
		})
	})
	eachMySQL(t, func(t *testing.T, db businessDB) {
		testLockedRateLimits(t, db, lockedRateLimits{
			holder: "KILL with a trx_mysql_thread_id",
			bound:  "CAST(@@SESSION.wait_timeout AS char)", bounded: "10", usual: "28800",
			trigger: []string{"CREATE TRIGGER see BEFORE UPDATE ON rabbitdelay_destinations FOR EACH ROW INSERT INTO seen VALUES (@@SESSION.wait_timeout)"},
		})
	})
}

// lockedRateLimits is what TestLockedRateLimits expects of a database.
type lockedRateLimits struct {
	holder         string   // part of the text that describes the session with the lock
	bound          string   // expression for the limit of an idle session
	bounded, usual string   // its values, in a claim and otherwise
	trigger        []string // statements that record the limit in the table seen when a rate limit is used
}

func testLockedRateLimits(t *testing.T, db businessDB, expected lockedRateLimits) {
	t.Helper()
	db.mustExec(t, "CREATE TABLE seen (bound varchar(20))")
	var out outbox
	s := newStore(t, db, &out, schedule.Config{PollInterval: 20 * time.Millisecond})
	for _, statement := range expected.trigger {
		db.mustExec(t, statement)
	}
	for _, queue := range []string{"mail", "hung"} {
		suite.MustSucceed(t, s.SetRateLimit(t.Context(), schedule.NoTx, schedule.RateLimit{Queue: queue, PerSecond: 100}))
	}
	db.mustExec(t, "DELETE FROM seen")
	stop := runStore(t, s)
	suite.Eventually(t, "the relay runs", func() bool { return s.Health() == nil })
	lock := func(queue string) *sql.Tx {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		suite.MustSucceed(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		if queue == "hung" {
			c, err := rows.Open(sqldb.Of(db.DB), sqldb.Dialect(db.dialect), nil).On(t.Context(), sqldb.On(tx))
			suite.MustSucceed(t, err)
			suite.MustSucceed(t, c.BoundClaim(t.Context()))
		}
		_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM rabbitdelay_destinations WHERE queue = '"+queue+"' FOR UPDATE")
		suite.MustSucceed(t, err)
		return tx
	}
	tx := lock("mail")
	lock("hung")
	for _, task := range []schedule.Task{{ID: "a", Queue: "mail"}, {ID: "hung", Queue: "hung"}} {
		task.DeliverAt = time.Now()
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, task))
	}
	suite.Eventually(t, "Health reports the lock", func() bool {
		text := fmt.Sprint(s.Health())
		return strings.Contains(text, "another session has held the lock on the rate limit of mail") && strings.Contains(text, expected.holder)
	})
	suite.Eventually(t, "the server ends the claim that hangs, and its task is sent", func() bool { return out.count("hung") == 1 })
	if n := db.queryInt(t, "SELECT COUNT(*) FROM seen WHERE bound = ?", expected.bounded); n == 0 {
		t.Errorf("no claim used a rate limit in a session with the limit %s", expected.bounded)
	}
	if n := db.queryInt(t, "SELECT COUNT(*) FROM seen WHERE bound <> ?", expected.bounded); n > 0 {
		t.Errorf("%d claims used a rate limit in a session without the limit %s", n, expected.bounded)
	}
	stop()
	var sessions []*sql.Conn
	for range 6 { // all of the pool, except the two of the locks
		c, err := db.Conn(t.Context())
		suite.MustSucceed(t, err)
		sessions = append(sessions, c)
		var bound string
		suite.MustSucceed(t, c.QueryRowContext(t.Context(), "SELECT "+expected.bound).Scan(&bound))
		if bound != expected.usual {
			t.Errorf("after the relay has ended, a session has the limit %s, want %s", bound, expected.usual)
		}
	}
	for _, c := range sessions {
		suite.MustSucceed(t, c.Close())
	}

	// A relay that starts now, with another rate limit for the queue, sends the tasks of other destinations.
	var second outbox
	rateLimit := schedule.RateLimit{Queue: "mail", PerSecond: 50}
	s = newStore(t, db, &second, schedule.Config{PollInterval: 20 * time.Millisecond, RateLimits: []schedule.RateLimit{rateLimit}})
	runStore(t, s)
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "b", Queue: "push", DeliverAt: time.Now()}))
	suite.Eventually(t, "a task to another queue is sent", func() bool { return second.count("b") == 1 })
	if second.count("a") != 0 {
		t.Errorf("the task with the locked rate limit was sent %d times, want 0", second.count("a"))
	}
	suite.MustSucceed(t, tx.Rollback())
	suite.Eventually(t, "the task is sent and Health returns nil", func() bool { return second.count("a") == 1 && s.Health() == nil })
	suite.Eventually(t, "the rate limit of the second relay is written", func() bool {
		list, err := s.Destinations(t.Context(), schedule.NoTx)
		suite.MustSucceed(t, err)
		return slices.ContainsFunc(list, func(d schedule.DestinationState) bool { return d.Queue == "mail" && d.PerSecond == 50 })
	})
}
