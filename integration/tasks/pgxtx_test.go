package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// On a pool or on a connection outside a transaction, a batch is a separate transaction. On a transaction or on a
// connection inside one, the batch is part of that transaction.
func TestPgxExecutors(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	s := newStore(t, db, nil, schedule.Config{})
	due := time.Now().Add(time.Hour)
	// This batch needs more than one statement, and the last one fails.
	batch := make([]schedule.Task, 501)
	for i := range batch {
		batch[i] = orderTask(fmt.Sprintf("b%03d", i), due)
	}
	there := batch[500].ID
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, batch[500]))
	count := func() int64 { return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks") }

	pooled, err := db.pool.Acquire(t.Context())
	suite.MustSucceed(t, err)
	defer pooled.Release()
	for name, ex := range map[string]pgxtx.Executor{"pool": db.pool, "*pgxpool.Conn": pooled, "*pgx.Conn": pooled.Conn()} {
		if err := s.ScheduleBatch(t.Context(), pgxtx.On(ex), batch); !errors.Is(err, schedule.ErrExists) || count() != 1 {
			t.Errorf("%s: got error %v and %d tasks, want schedule.ErrExists and 1", name, err, count())
		}
		if n, err := s.CancelBatch(t.Context(), pgxtx.On(ex), []string{"nobody"}); n != 0 || err != nil {
			t.Errorf("%s: cancelled %d tasks (error %v), want 0 and no error", name, n, err)
		}
		if got, err := s.Get(t.Context(), pgxtx.On(ex), there); err != nil || got.Queue != "orders.expire" {
			t.Errorf(`%s: got %+v (%v), want no error and Queue = "orders.expire"`, name, got, err)
		}
	}
	for name, on := range map[string]func(tx pgx.Tx) pgxtx.Executor{
		"pgx.Tx":    func(tx pgx.Tx) pgxtx.Executor { return tx },
		"*pgx.Conn": func(tx pgx.Tx) pgxtx.Executor { return tx.Conn() },
	} {
		tx, err := db.pool.Begin(t.Context())
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), pgxtx.On(on(tx)), batch[:500]))
		suite.MustSucceed(t, s.Cancel(t.Context(), pgxtx.On(on(tx)), "b007"))
		if got, err := s.Get(t.Context(), pgxtx.On(on(tx)), "b007"); err != nil || got.Status != schedule.StatusCancelled {
			t.Errorf("%s: got %+v (%v), want no error and Status = schedule.StatusCancelled", name, got, err)
		}
		var listed int
		for _, err := range s.List(t.Context(), pgxtx.On(on(tx)), schedule.Filter{Status: schedule.StatusPending}) {
			suite.MustSucceed(t, err)
			listed++
		}
		if listed != 500 {
			t.Errorf("%s: listed %d pending tasks, want 500", name, listed)
		}
		suite.MustSucceed(t, tx.Rollback(t.Context()))
		if count() != 1 {
			t.Errorf("%s: %d tasks after the rollback, want 1", name, count())
		}
	}
}

// trips records the requests to the server, with one entry for each round trip.
type trips struct {
	mu   sync.Mutex
	sent []string
}

func (s *trips) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, what)
}

func (s *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.note(firstWord(q.SQL))
	return ctx
}

func (s *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	words := make([]string, len(b.Batch.QueuedQueries))
	for i, q := range b.Batch.QueuedQueries {
		words[i] = firstWord(q.SQL)
	}
	s.note(strings.Join(words, "+"))
	return ctx
}

func (s *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func firstWord(query string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(query), " ")
	return strings.ToLower(word)
}

// The first statement of a transaction is sent together with its BEGIN.
func TestPgxRoundTrips(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	var s trips
	cfg := db.pool.Config()
	cfg.ConnConfig.Tracer = &s
	traced, err := pgxpool.NewWithConfig(t.Context(), cfg)
	suite.MustSucceed(t, err)
	defer traced.Close()
	store := newStore(t, db, nil, schedule.Config{})
	due := time.Now()
	suite.MustSucceed(t, store.Schedule(t.Context(), schedule.NoTx, orderTask("a", due)))
	nothing := func(context.Context, pgx.Tx, *amqpx.Delivery) error { return nil }
	d := &amqpx.Delivery{ID: "a", Queue: "q", Version: 1, DueAt: due.Add(time.Second)}
	suite.MustSucceed(t, pgxtx.TaskHandler(traced, nothing)(t.Context(), d))
	suite.MustSucceed(t, pgxtx.IdempotentHandler(traced, nothing)(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"}))
	// Once a minute, a handler reads the database's clock first.
	if want := []string{"select", "begin+update", "commit", "begin+insert", "commit"}; !slices.Equal(s.sent, want) {
		t.Errorf("sent %q, want %q", s.sent, want)
	}
}

// When a handler returns, panics or leaves its transaction unusable, the transaction ends and the connection returns to
// the pool.
func TestPgxHandlerEnds(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	o := newOrders(t, db, "1")
	var do func(ctx context.Context, tx pgx.Tx) error
	handle := pgxtx.IdempotentHandler(db.pool, func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
		if err := o.cancel(ctx, pgxtx.On(tx), d); err != nil {
			return err
		}
		return do(ctx, tx)
	})
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range []struct {
		name   string
		do     func(ctx context.Context, tx pgx.Tx) error
		expect func(err error) bool
	}{
		{"an error", func(context.Context, pgx.Tx) error { return boom }, func(err error) bool { return errors.Is(err, boom) }},
		{"a panic", func(context.Context, pgx.Tx) error { panic(boom) }, func(err error) bool { return errors.Is(err, boom) }},
		{
			"a swallowed error",
			func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
			func(err error) bool {
				return !errors.Is(err, idempotency.ErrCommit) && strings.Contains(fmt.Sprint(err), "return every error from the transaction")
			},
		},
		{
			"rows left open",
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, "SELECT 1") //nolint:gocritic,sqlclosecheck // the test leaves the rows open on purpose
				return err
			},
			func(err error) bool {
				return !errors.Is(err, idempotency.ErrCommit) && strings.Contains(fmt.Sprint(err), "busy")
			},
		},
		{
			"its own commit",
			func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
			func(err error) bool { return strings.Contains(fmt.Sprint(err), "ended the transaction itself") },
		},
		{
			"the end of its context", func(context.Context, pgx.Tx) error { cancel(); return nil },
			func(err error) bool {
				return errors.Is(err, context.Canceled) && !errors.Is(err, idempotency.ErrCommit)
			},
		},
	} {
		do = c.do
		err := func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err, _ = r.(error)
				}
			}()
			return handle(ctx, orderDelivery("m", "1"))
		}()
		if !c.expect(err) {
			t.Errorf("%s: unexpected error %v", c.name, err)
		}
		if n := o.effects(t, "1"); n != 0 {
			t.Errorf("%s: %d effects, want 0", c.name, n)
		}
		suite.Eventually(t, c.name+": the connection is back", func() bool { return db.pool.Stat().AcquiredConns() == 0 })
	}
	do = func(context.Context, pgx.Tx) error { return nil }
	suite.MustSucceed(t, handle(t.Context(), orderDelivery("m", "1")))
	if n := o.effects(t, "1"); n != 1 {
		t.Errorf("after a handler that succeeds: %d effects, want 1", n)
	}
}

// If a handler ignores the error of a statement, PostgreSQL turns the commit into a rollback, and the error says so.
func TestSwallowedError(t *testing.T) {
	t.Parallel()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	newOrders(t, db)
	err := idempotency.Handler(db.DB, func(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error {
		_, _ = tx.ExecContext(ctx, "SELECT 1/0")
		return nil
	})(t.Context(), orderDelivery("m", "1"))
	if errors.Is(err, idempotency.ErrCommit) || !strings.Contains(fmt.Sprint(err), "return every error from the transaction") {
		t.Errorf(`got error %v, want an error with "return every error from the transaction" and not idempotency.ErrCommit`, err)
	}
}

// A guard for the other driver fails with an error that names the transaction type that the guard expects.
func TestPgxWhen(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	o := newOrders(t, db, "1")
	var s skips
	ask := func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) (unpaid bool, err error) {
		err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM orders WHERE id = $1 AND status = 'unpaid')", string(d.Body)).Scan(&unpaid)
		return unpaid, err
	}
	handle := db.idempotentHandler(o.cancel, s.option(), idempotency.When(ask))
	suite.MustSucceed(t, handle(t.Context(), orderDelivery("m1", "1")))
	suite.MustSucceed(t, handle(t.Context(), orderDelivery("m2", "1")))
	if n := o.effects(t, "1"); n != 1 || s.count(idempotency.SkipGuarded) != 1 {
		t.Errorf("%d effects and %d messages skipped as guarded, want 1 and 1", n, s.count(idempotency.SkipGuarded))
	}
	yes := idempotency.When(func(context.Context, *sql.Tx, *amqpx.Delivery) (bool, error) { return true, nil })
	if err := db.idempotentHandler(o.cancel, yes)(t.Context(), orderDelivery("m3", "1")); err == nil || !strings.Contains(err.Error(), "expects *sql.Tx") {
		t.Errorf(`got error %v, want an error with "expects *sql.Tx"`, err)
	}
	err := idempotency.Handler(db.DB, txFunc(o.cancel).sql, idempotency.When(ask))(t.Context(), orderDelivery("m3", "1"))
	if err == nil || !strings.Contains(err.Error(), "expects pgx.Tx") {
		t.Errorf("got error %v, want one with \"expects pgx.Tx\"", err)
	}
}

// A relay on a pool is notified of rows that other programs write, although it polls once an hour
// and the pool has one connection for everything else.
func TestPgxListens(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	cfg := db.pool.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	suite.MustSucceed(t, err)
	defer pool.Close()
	suite.MustSucceed(t, pgxtx.Migrate(t.Context(), pool))
	var out outbox
	s, err := pgxtx.New(pool, &out, schedule.Config{PollInterval: time.Hour})
	suite.MustSucceed(t, err)
	stop := runStore(t, s)
	listening := "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
	suite.Eventually(t, "the relay listens", func() bool { return db.queryInt(t, listening) == 1 })
	for _, id := range []string{"first", "second"} {
		db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', 1)", id)
		suite.Eventually(t, id+" is sent", func() bool { return out.count(id) == 1 })
	}
	stop()
	suite.Eventually(t, "its connection is closed", func() bool { return db.queryInt(t, listening) == 0 })
}

// RunPurge deletes old records repeatedly until its context is cancelled.
func TestPgxRunPurge(t *testing.T) {
	t.Parallel()
	db := openPgx(t)
	suite.MustSucceed(t, db.migrateRecords(t.Context()))
	record := func() {
		db.mustExec(t, "INSERT INTO rabbitdelay_processed (scope, message_id, outcome, processed_at) VALUES ('q', 'old', 'done', 1)")
	}
	record()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds := 0
	err := pgxtx.RunPurge(ctx, db.pool, idempotency.Retention{Keep: time.Hour, Every: time.Millisecond}, func(n int64, err error) {
		suite.MustSucceed(t, err)
		switch rounds += int(n); {
		case rounds == 2:
			cancel()
		case n == 1:
			record()
		}
	})
	if err != nil || rounds != 2 {
		t.Errorf("%d records were purged (error %v), want 2", rounds, err)
	}
}
