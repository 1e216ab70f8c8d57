package tasks_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// keyed returns a task with the unique key k for the queue q, due after a delay.
func keyed(delay time.Duration) schedule.Task {
	return schedule.Task{UniqueKey: "k", Queue: "q", DeliverAt: time.Now().Add(delay), Body: []byte(delay.String())}
}

// Producers write events and schedule a task with the same key, while handlers of such tasks run. After a producer has
// committed, a handler always starts that sees the producer's event, and there are never two pending tasks.
func TestUniqueKeyLosesNothing(t *testing.T) {
	t.Parallel()
	toQueue, toExchange := schedule.Task{Queue: "q"}, schedule.Task{Exchange: "events"}
	for name, c := range map[string]struct {
		u   schedule.Unique
		to  schedule.Task
		sql string
	}{
		"keep":                 {schedule.Unique{}, toQueue, ""},
		"keep, to an exchange": {schedule.Unique{}, toExchange, ""},
		"replace":              {schedule.Unique{OnConflict: schedule.ReplacePending}, toQueue, ""},
		"push back":            {schedule.Unique{OnConflict: schedule.PushBackPending, MaxWait: time.Hour}, toQueue, ""},
		"by SQL, keep":         {sql: "schedule with a unique key, keep"},
		"by SQL, replace":      {sql: "schedule with a unique key, replace"},
		"by SQL, push back":    {sql: "schedule with a unique key, push back"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			oneDatabase(t, func(t *testing.T, db businessDB) { contend(t, db, c.u, c.to, c.sql) })
		})
	}
}

func contend(t *testing.T, db businessDB, u schedule.Unique, to schedule.Task, statement string) {
	t.Helper()
	const rounds, producers = 40, 6
	s := newStore(t, db, nil, schedule.Config{})
	db.mustExec(t, "CREATE TABLE events (id INT NOT NULL PRIMARY KEY)")
	c := &contention{t: t, db: db, s: s, seen: map[int]bool{}}
	c.schedule = func(ctx context.Context, tx *sql.Tx) error {
		task := to
		task.UniqueKey, task.DeliverAt = "k", time.Now()
		_, err := s.ScheduleUnique(ctx, tx, task, u)
		return err
	}
	if statement != "" {
		query := db.bind(namedQuery(strings.ReplaceAll(documented(t, db.dialect)[statement], " + 5 * 1000", ""), func(string) {}))
		c.schedule = func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, query, rand.Text())
			return err
		}
	}
	c.handle = schedule.Handler(db.DB, c.effect, schedule.OnSkip(func(context.Context, *amqpx.Delivery, schedule.SkipReason) { c.found = nil }))
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range producers {
			wg.Go(func() { c.produce(round*producers + i) })
		}
		wg.Go(c.consume)
		wg.Wait()
		c.consume()
		for i := range (round + 1) * producers {
			if !c.seen[i] {
				t.Fatalf("after round %d: no handler has seen event %d and no task is pending, want one of the two", round, i)
			}
		}
	}
	if n := c.undone.Load(); n > rounds*producers/4 {
		t.Errorf("the database rolled back %d of %d transactions, want at most %d", n, rounds*producers, rounds*producers/4)
	}
	t.Logf("the database rolled back %d transactions", c.undone.Load())
}

// contention runs producers and a handler for one key.
type contention struct {
	t        *testing.T
	db       businessDB
	s        *schedule.Store
	handle   amqpx.Handler
	schedule func(ctx context.Context, tx *sql.Tx) error // schedules a task with the key, due now
	undone   atomic.Int64
	found    []int        // events that the running effect has found; only one effect runs at a time
	seen     map[int]bool // events that committed effects have found
}

// produce writes an event and schedules the key, in one transaction.
func (c *contention) produce(event int) {
	for {
		err := c.tryProduce(event)
		if err == nil {
			return
		}
		if c.undone.Add(1); c.t.Context().Err() != nil || !undone(err) {
			c.t.Errorf("event %d: unexpected error %v", event, err)
			return
		}
	}
}

func (c *contention) tryProduce(event int) error {
	tx, err := c.db.BeginTx(c.t.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(c.t.Context(), c.db.bind("INSERT INTO events (id) VALUES (?)"), event); err != nil {
		return err
	}
	if err := c.schedule(c.t.Context(), tx); err != nil {
		return err
	}
	return tx.Commit()
}

// effect is the handler's effect: it records the events that it finds.
func (c *contention) effect(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error {
	rows, err := tx.QueryContext(ctx, "SELECT id FROM events")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	c.found = nil
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			return err
		}
		c.found = append(c.found, id)
	}
	return errors.Join(rows.Err(), rows.Close())
}

// consume handles the pending tasks until there are none.
func (c *contention) consume() {
	for range 3 {
		var pending []schedule.TaskRow
		for task, err := range c.s.List(c.t.Context(), schedule.NoTx, schedule.Filter{Status: schedule.StatusPending}) {
			if err != nil {
				c.t.Error(err)
				return
			}
			pending = append(pending, task)
		}
		if len(pending) > 1 {
			c.t.Errorf("%d pending tasks with one key, want at most 1", len(pending))
		}
		for _, p := range pending {
			d := &amqpx.Delivery{ID: p.ID, Queue: "q", Exchange: p.Exchange, Version: p.Version, Created: p.CreatedAt, DueAt: p.DeliverAt, Attempt: 1, MaxAttempts: 100}
			if err := c.handle(c.t.Context(), d); err != nil {
				c.t.Errorf("handling task %s: got error %v, want nil", p.ID, err)
				continue
			}
			for _, id := range c.found {
				c.seen[id] = true
			}
		}
	}
}

// undone reports whether the database rolled back a transaction because of a concurrent transaction.
func undone(err error) bool {
	text := err.Error()
	for _, part := range []string{"40001", "40P01", "1213", "1020", "SQLITE_BUSY", "database is locked"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// ScheduleUnique keeps, pushes back, replaces or refuses as requested, and returns what it did.
func TestScheduleUnique(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		u := uniqueRows{t, db, newStore(t, db, nil, schedule.Config{})}
		u.merges()
		u.cools()
		u.giveWay()
		if db.dialect != idempotency.SQLite { // SQLite has one writer at a time
			u.reviveBeside()
		}
	})
}

type uniqueRows struct {
	t  *testing.T
	db businessDB
	s  *schedule.Store
}

// do schedules a task and fails the test if the outcome is not want.
func (x uniqueRows) do(task schedule.Task, u schedule.Unique, want schedule.UniqueOutcome) schedule.UniqueResult {
	x.t.Helper()
	r, err := x.s.ScheduleUnique(x.t.Context(), schedule.NoTx, task, u)
	suite.MustSucceed(x.t, err)
	if r.Outcome != want {
		x.t.Errorf("got %+v, want Outcome = %s", r, want)
	}
	if r.Outcome != schedule.UniqueRefused && !r.DueAt.Equal(taskOf(x.t, x.s, r.ID).DeliverAt) {
		x.t.Errorf("got %+v, want DeliverAt = %v, the due time in the row", r, taskOf(x.t, x.s, r.ID).DeliverAt)
	}
	return r
}

// wear changes the pending row as if the task had been sent and an attempt had failed.
func (x uniqueRows) wear() {
	x.db.mustExec(x.t,
		"UPDATE rabbitdelay_tasks SET attempts = 2, last_error = 'x', sent_at = 5, sends = 4, send_failures = 1, "+
			"resend_at = 9, claimed_until = 99 WHERE status = 'pending'")
}

func (x uniqueRows) merges() {
	t, minute := x.t, time.Minute
	push := schedule.Unique{OnConflict: schedule.PushBackPending, MaxWait: 20 * minute}
	first := keyed(minute)
	first.Tags, first.Headers = []string{"a", "b"}, map[string]string{"n": "1"}
	id := x.do(first, schedule.Unique{}, schedule.UniqueCreated).ID
	if len(id) != 36 {
		t.Errorf("id %q, want a UUID", id)
	}
	x.wear()

	before := rowOf(t, x.db, id)
	other := keyed(2 * minute)
	other.ID, other.Queue, other.Tags = "other", "elsewhere", []string{"c"}
	if r := x.do(other, schedule.Unique{}, schedule.UniqueKept); r.ID != id {
		t.Errorf("got %+v, want the pending task %s", r, id)
	}
	x.do(keyed(0), push, schedule.UniqueKept) // a task is never pushed to an earlier time
	same(t, "keep", before, rowOf(t, x.db, id))

	x.do(keyed(5*minute), push, schedule.UniquePushedBack)
	got := taskOf(t, x.s, id)
	if string(got.Body) != "1m0s" || got.Version != 2 || got.Attempts != 0 || got.Sends != 0 || len(got.Tags) != 2 {
		t.Errorf("after a push back: got %+v, want the old body and tags, Version = 2, Attempts = 0 and Sends = 0", got)
	}
	x.wear()
	if r := x.do(keyed(time.Hour), push, schedule.UniquePushedBack); !r.DueAt.Equal(got.CreatedAt.Add(push.MaxWait)) {
		t.Errorf("pushing back beyond MaxWait: got %+v, want DeliverAt %v after %v", r, push.MaxWait, got.CreatedAt)
	}
	x.wear()
	x.do(keyed(2*time.Hour), push, schedule.UniqueKept)
	if got := taskOf(t, x.s, id); got.Version != 3 || got.Sends != 4 {
		t.Errorf("pushing back a task that has reached MaxWait: got %+v, want Version = 3 and Sends = 4", got)
	}

	if r := x.do(other, schedule.Unique{OnConflict: schedule.ReplacePending}, schedule.UniqueReplaced); r.ID != id {
		t.Errorf("got %+v, want the pending task %s", r, id)
	}
	old := got
	got = taskOf(t, x.s, id)
	if got.Queue != "elsewhere" || string(got.Body) != "2m0s" || got.Version != 4 || got.Attempts != 0 || got.Sends != 0 || !got.CreatedAt.After(old.CreatedAt) ||
		len(got.Headers) != 0 || !slices.Equal(got.Tags, []string{"c"}) || got.UniqueKey != "k" {
		t.Errorf("after a replacement: got %+v, want the new queue, body, headers and tags, Version = 4, Attempts = 0 and Sends = 0", got)
	}

	suite.MustSucceed(t, x.s.Cancel(t.Context(), schedule.NoTx, id))
	tx, err := x.db.BeginTx(t.Context(), nil)
	suite.MustSucceed(t, err)
	again := keyed(0)
	again.ID = id
	if _, err := x.s.ScheduleUnique(t.Context(), tx, again, schedule.Unique{}); !errors.Is(err, schedule.ErrExists) {
		t.Errorf("scheduling with the id of a finished task: got error %v, want schedule.ErrExists", err)
	}
	again.ID = "next"
	if r, err := x.s.ScheduleUnique(t.Context(), tx, again, schedule.Unique{}); err != nil || r.Outcome != schedule.UniqueCreated {
		t.Errorf("in the same transaction: got %+v, %v, want no error and Outcome = schedule.UniqueCreated", r, err)
	}
	again.ID = id // another task with the key is pending
	if r, err := x.s.ScheduleUnique(t.Context(), tx, again, schedule.Unique{}); err != nil || r.Outcome != schedule.UniqueKept || r.ID != "next" {
		t.Errorf("in the same transaction: got %+v, %v, want no error, Outcome = schedule.UniqueKept and ID = next", r, err)
	}
	suite.MustSucceed(t, tx.Rollback())
	if n := x.db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); n != 1 {
		t.Errorf("%d tasks after the rollback, want 1", n)
	}
}

// cools checks that tasks are refused during the cooldown, including a task that waited for the previous task's
// handler.
func (x uniqueRows) cools() {
	t := x.t
	hour := schedule.Unique{Cooldown: time.Hour}
	id := x.do(keyed(0), hour, schedule.UniqueCreated).ID
	result := make(chan schedule.UniqueResult, 1)
	handle := schedule.Handler(x.db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error {
		go func() {
			r, err := x.s.ScheduleUnique(t.Context(), schedule.NoTx, keyed(0), hour)
			if err != nil {
				t.Error(err)
			}
			result <- r
		}()
		<-time.After(100 * time.Millisecond) // so that it most likely waits; the outcome is the same if not
		return nil
	})
	task := taskOf(t, x.s, id)
	suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: id, Queue: "q", Version: 1, DueAt: task.DeliverAt}))
	until := taskOf(t, x.s, id).FinishedAt.Add(time.Hour)
	for _, r := range []schedule.UniqueResult{<-result, x.do(keyed(0), hour, schedule.UniqueRefused)} {
		if r.Outcome != schedule.UniqueRefused || r.ID != id || !r.Until.Equal(until) || !r.DueAt.IsZero() {
			t.Errorf("got %+v, want a refusal until %v because of task %s", r, until, id)
		}
	}
	if n := x.db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'pending'"); n != 0 {
		t.Errorf("%d pending tasks, want 0", n)
	}
	x.db.mustExec(t, "UPDATE rabbitdelay_tasks SET finished_at = finished_at - 3600001 WHERE id = ?", id)
	x.do(keyed(0), hour, schedule.UniqueCreated)
	x.db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
}

// giveWay checks that a task whose leased work fails is cancelled if another task with its key is pending.
func (x uniqueRows) giveWay() {
	t := x.t
	id := x.do(keyed(0), schedule.Unique{}, schedule.UniqueCreated).ID
	handle := schedule.LeaseHandler(x.db.DB, func(context.Context, *amqpx.Delivery, string) (schedule.Func, error) {
		x.do(keyed(0), schedule.Unique{}, schedule.UniqueCreated)
		return nil, errors.New("provider is away")
	})
	task := taskOf(t, x.s, id)
	if err := handle(t.Context(), &amqpx.Delivery{ID: id, Queue: "q", Version: 1, DueAt: task.DeliverAt, Attempt: 1, MaxAttempts: 3}); err == nil {
		t.Error("the failing handler returned no error")
	}
	if got := taskOf(t, x.s, id); got.Status != schedule.StatusCancelled || !strings.Contains(got.LastError, "provider is away") || got.FinishedAt.IsZero() {
		t.Errorf("got %+v, want Status = schedule.StatusCancelled, LastError containing \"provider is away\" and FinishedAt set", got)
	}
	for range 2 {
		x.db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE status = 'pending'")
		x.do(keyed(0), schedule.Unique{}, schedule.UniqueCreated)
	}
	p, err := x.s.Bulk(t.Context(), schedule.Filter{UniqueKey: "k"}, schedule.BulkRevive(time.Now()), schedule.BulkOptions{})
	if err != nil || p.Changed != 0 {
		t.Errorf("while another task with the key is pending: %d tasks were revived (error %v), want 0", p.Changed, err)
	}
	x.db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1 WHERE status = 'pending'")
	p, err = x.s.Bulk(t.Context(), schedule.Filter{UniqueKey: "k"}, schedule.BulkRevive(time.Now()), schedule.BulkOptions{})
	if err != nil || p.Changed != 1 {
		t.Errorf("%d of 3 failed tasks were revived (error %v), want 1", p.Changed, err)
	}
}

// reviveBeside checks that a task is not revived if an uncommitted transaction has scheduled another task with its key.
func (x uniqueRows) reviveBeside() {
	t := x.t
	x.db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
	x.do(keyed(0), schedule.Unique{}, schedule.UniqueCreated)
	x.db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = 1")
	tx, err := x.db.BeginTx(t.Context(), nil)
	suite.MustSucceed(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = x.s.ScheduleUnique(t.Context(), tx, keyed(0), schedule.Unique{})
	suite.MustSucceed(t, err)
	done := make(chan error, 1)
	changed := int64(0)
	go func() {
		p, err := x.s.Bulk(t.Context(), schedule.Filter{Status: schedule.StatusFailed}, schedule.BulkRevive(time.Now()), schedule.BulkOptions{})
		changed = p.Changed
		done <- err
	}()
	suite.Eventually(t, "the revival waits for the other transaction", func() bool {
		if x.db.dialect == idempotency.MySQL {
			<-time.After(150 * time.Millisecond) // MySQL refreshes innodb_trx only if nobody has read it for 0.1 s
		}
		return x.db.queryInt(t, blocked[x.db.dialect]) > 0
	})
	suite.MustSucceed(t, tx.Commit())
	if err := <-done; err != nil || changed != 0 {
		t.Errorf("%d tasks were revived (error %v), want 0, because a task with the key was scheduled in the meantime", changed, err)
	}
}

// blocked has queries that count the sessions that are waiting for a lock.
var blocked = map[idempotency.Dialect]string{
	idempotency.PostgreSQL: "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
	idempotency.MySQL: "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p" +
		" ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()",
}

// The documented statements have the same effect on the row of the pending task as ScheduleUnique.
func TestDocumentedUniqueStatements(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		doc := documented(t, db.dialect)
		x := uniqueRows{t, db, newStore(t, db, nil, schedule.Config{})}
		task := func(id string, delay time.Duration) schedule.Task {
			return schedule.Task{ID: id, UniqueKey: "reindex-42", Queue: "search.reindex", DeliverAt: time.Now().Add(delay), Body: []byte(`{"product":42}`)}
		}
		byAPI := map[string]schedule.Unique{
			"keep": {}, "replace": {OnConflict: schedule.ReplacePending}, "push back": {OnConflict: schedule.PushBackPending, MaxWait: time.Minute},
		}
		for name, u := range byAPI {
			statement := doc["schedule with a unique key, "+name]
			both := func(what string, prepare func()) (id string) {
				t.Helper()
				var rows [2]map[string]string
				for i, do := range []func(){
					func() { named(t, db, statement, map[string]any{"id": "new"}) },
					func() {
						_, err := x.s.ScheduleUnique(t.Context(), schedule.NoTx, task("new", 5*time.Second), u)
						suite.MustSucceed(t, err)
					},
				} {
					db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
					prepare()
					do()
					stands := tableOf(t, db, doc["which task has the key"])
					if len(stands) != 1 {
						t.Fatalf("%s, %s: the pending tasks are %v, want exactly one", name, what, stands)
					}
					id = stands[0].([]string)[0]
					rows[i] = rowOf(t, db, id)
				}
				same(t, name+", "+what, rows[0], rows[1])
				return id
			}
			worn := func(delay time.Duration) func() {
				return func() {
					pending := task("pending", delay)
					pending.Exchange, pending.RoutingKey, pending.Queue, pending.Body, pending.Type = "e", "k", "", []byte("old"), "t"
					x.do(pending, schedule.Unique{}, schedule.UniqueCreated)
					x.wear()
				}
			}
			if id := both("none is pending", func() {}); id != "new" {
				t.Errorf("%s: the pending task is %s, want new", name, id)
			}
			for what, delay := range map[string]time.Duration{"one is due now": 0, "one is due later": time.Hour} {
				if id := both(what, worn(delay)); id != "pending" {
					t.Errorf("%s, %s: the pending task is %s, want pending", name, what, id)
				}
			}
			for earlier, want := range map[string]int64{"running": 1, "done": 1, "failed": 0} {
				db.mustExec(t, "DELETE FROM rabbitdelay_tasks")
				x.do(task("earlier", 0), schedule.Unique{}, schedule.UniqueCreated)
				db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = ?, finished_at = ?", earlier, time.Now().UnixMilli())
				named(t, db, statement, map[string]any{"id": "new"})
				if n := named(t, db, doc["refuse"], map[string]any{"id": "new"}); n != want {
					t.Errorf("%s: with an earlier task that is %s, the statement \"refuse\" changed %d rows, want %d", name, earlier, n, want)
				}
			}
		}
	})
}
