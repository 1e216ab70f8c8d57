package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// orders is a business table. Its column effects counts how often a row was changed.
type orders struct{ businessDB }

func newOrders(t *testing.T, db businessDB, ids ...string) orders {
	t.Helper()
	if err := db.migrateRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.mustExec(t, "CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL, due_ms BIGINT NOT NULL, effects INTEGER NOT NULL)")
	o := orders{db}
	for _, id := range ids {
		o.add(t, id)
	}
	return o
}

func (o orders) add(t *testing.T, id string) {
	t.Helper()
	o.mustExec(t, "INSERT INTO orders VALUES (?, 'unpaid', 1000, 0)", id)
}

func (o orders) effects(t *testing.T, id string) int64 {
	t.Helper()
	return o.queryInt(t, "SELECT effects FROM orders WHERE id = ?", id)
}

// cancel is the effect of a message. The message's body is the order's id.
func (o orders) cancel(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
	_, err := tx.ExecContext(ctx, o.bind("UPDATE orders SET status = 'cancelled', effects = effects + 1 WHERE id = ?"), string(d.Body))
	return err
}

func orderDelivery(id, order string) *amqpx.Delivery {
	return &amqpx.Delivery{ID: id, Queue: "orders.expire", Body: []byte(order), Attempt: 1, DueAt: time.UnixMilli(1000)}
}

// skips counts the calls to OnSkip.
type skips struct {
	mu sync.Mutex
	n  map[idempotency.SkipReason]int
}

func (s *skips) option() idempotency.HandlerOption {
	return idempotency.OnSkip(func(_ context.Context, _ *amqpx.Delivery, r idempotency.SkipReason) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.n == nil {
			s.n = map[idempotency.SkipReason]int{}
		}
		s.n[r]++
	})
}

func (s *skips) count(r idempotency.SkipReason) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[r]
}

func TestIdempotencyEffectOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		o := newOrders(t, db, "1")
		var s skips
		handle := db.idempotentHandler(o.cancel, s.option())
		for range 3 {
			if err := handle(t.Context(), orderDelivery("m", "1")); err != nil {
				t.Fatal(err)
			}
		}
		if n := o.effects(t, "1"); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
		if n := s.count(idempotency.SkipDuplicate); n != 2 {
			t.Errorf("%d duplicates were skipped, want 2", n)
		}
		// Ids that a lax collation considers equal are different ids, and so is the same id in
		// other queues.
		for _, id := range []string{"M", "m ", "ḿ", "m\u0301", strings.Repeat("é", 127)} {
			if err := handle(t.Context(), orderDelivery(id, "1")); err != nil {
				t.Fatalf("message %q: got %v, want no error", id, err)
			}
		}
		other := orderDelivery("m", "1")
		other.Queue = "orders.audit"
		if err := handle(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if n := o.effects(t, "1"); n != 7 {
			t.Errorf("%d effects, want 7: one for each id and queue", n)
		}
	})
}

func TestIdempotencyFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		o := newOrders(t, db, "1")
		boom := errors.New("boom")
		var fail func() error
		handle := db.idempotentHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			if err := o.cancel(ctx, tx, d); err != nil {
				return err
			}
			return fail()
		})
		fail = func() error { return boom }
		if err := handle(t.Context(), orderDelivery("m", "1")); !errors.Is(err, boom) {
			t.Fatalf("got error %v, want the handler's error %v", err, boom)
		}
		fail = func() error { panic(boom) }
		if got := panicOf(func() { _ = handle(t.Context(), orderDelivery("m", "1")) }); !errors.Is(got, boom) {
			t.Fatalf("panicked with %v, want the handler's panic value %v", got, boom)
		}
		ctx, cancel := context.WithCancel(t.Context())
		fail = func() error { cancel(); return nil }
		if err := handle(ctx, orderDelivery("m", "1")); !errors.Is(err, context.Canceled) {
			t.Fatalf("got error %v, want context.Canceled", err)
		}
		if n := o.effects(t, "1"); n != 0 {
			t.Fatalf("%d effects after failures, want 0", n)
		}
		fail = func() error { return nil }
		if err := handle(t.Context(), orderDelivery("m", "1")); err != nil {
			t.Fatal(err)
		}
		if n := o.effects(t, "1"); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	})
}

// panicOf runs f and returns the error that it panics with, or nil.
func panicOf(f func()) (got error) {
	defer func() { got, _ = recover().(error) }()
	f()
	return nil
}

// Many consumers receive the same message at the same moment. In every third round the first one that
// reaches the effect fails, and another one has to take over.
func TestIdempotencyConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	const rounds, consumers = 60, 4
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			eachDriver(t, func(t *testing.T, db businessDB) {
				if db.dialect == idempotency.SQLite && level != sql.LevelDefault && level != sql.LevelSerializable {
					t.Skip("skipped: SQLite has no such level")
				}
				o := newOrders(t, db)
				boom := errors.New("boom")
				for round := range rounds {
					id := fmt.Sprint(round)
					o.add(t, id)
					var s skips
					var toFail atomic.Int32
					if round%3 == 0 {
						toFail.Store(1)
					}
					handle := db.idempotentHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
						if err := o.cancel(ctx, tx, d); err != nil {
							return err
						}
						if toFail.Add(-1) >= 0 {
							return boom
						}
						return nil
					}, s.option(), idempotency.WithTxOptions(&sql.TxOptions{Isolation: level}))
					errs := together(consumers, func(int) error { return handle(t.Context(), orderDelivery("m"+id, id)) })
					failed := 0
					for _, err := range errs {
						if errors.Is(err, boom) {
							failed++
						} else if err != nil {
							t.Fatal(err)
						}
					}
					if n := o.effects(t, id); n != 1 {
						t.Fatalf("round %d: %d effects, want 1", round, n)
					}
					if n := s.count(idempotency.SkipDuplicate); n+failed != consumers-1 {
						t.Fatalf("round %d: %d consumers skipped the message and %d failed, want %d in total", round, n, failed, consumers-1)
					}
				}
			})
		})
	}
}

// together starts n goroutines at the same moment.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// If two effects lock the same two rows in opposite order and deadlock, the effect that the database rolls back runs
// again.
func TestIdempotencyDeadlockRunsAgain(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		if db.dialect == idempotency.SQLite {
			t.Skip("skipped: SQLite has one writer, so no deadlocks")
		}
		o := newOrders(t, db, "a", "b")
		const rounds = 3 // PostgreSQL detects a deadlock only after a second
		runs := atomic.Int32{}
		for round := range rounds {
			var met sync.WaitGroup
			met.Add(2)
			handle := func(first, second string) amqpx.Handler {
				var once sync.Once
				return db.idempotentHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
					runs.Add(1)
					if err := o.cancel(ctx, tx, orderDelivery("", first)); err != nil {
						return err
					}
					once.Do(func() { met.Done(); met.Wait() })
					return o.cancel(ctx, tx, orderDelivery("", second))
				})
			}
			hs := []amqpx.Handler{handle("a", "b"), handle("b", "a")}
			for _, err := range together(2, func(i int) error { return hs[i](t.Context(), orderDelivery(fmt.Sprintf("%d-%d", round, i), "")) }) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if a, b := o.effects(t, "a"), o.effects(t, "b"); a != 2*rounds || b != 2*rounds {
			t.Errorf("%d and %d effects, want %d each", a, b, 2*rounds)
		}
		if runs.Load() < 3*rounds {
			t.Errorf("the effects ran %d times, want at least %d because of the deadlocks", runs.Load(), 3*rounds)
		}
	})
}

func TestIdempotencyGuard(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		o := newOrders(t, db, "unpaid", "paid", "moved")
		o.mustExec(t, "UPDATE orders SET status = 'paid' WHERE id = 'paid'")
		o.mustExec(t, "UPDATE orders SET due_ms = 2000 WHERE id = 'moved'")
		var s skips
		handle := db.idempotentHandler(o.cancel, s.option(), o.guard())
		for _, id := range []string{"unpaid", "paid", "moved", "paid"} {
			if err := handle(t.Context(), orderDelivery("m-"+id, id)); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
		}
		for id, want := range map[string]int64{"unpaid": 1, "paid": 0, "moved": 0} {
			if n := o.effects(t, id); n != want {
				t.Errorf("order %s: %d effects, want %d", id, n, want)
			}
		}
		if g, d := s.count(idempotency.SkipGuarded), s.count(idempotency.SkipDuplicate); g != 2 || d != 1 {
			t.Errorf("%d messages were skipped as guarded and %d as duplicates, want 2 and 1", g, d)
		}
		if n := o.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_processed WHERE outcome = 'guarded'"); n != 2 {
			t.Errorf("%d records have the outcome guarded, want 2", n)
		}
	})
}

func (o orders) guard() idempotency.HandlerOption {
	query := "SELECT 1 FROM orders WHERE id = ? AND status = 'unpaid' AND due_ms <= ?"
	if o.dialect != idempotency.SQLite {
		query += " FOR UPDATE"
	}
	return idempotency.OnlyIf(o.bind(query), func(d *amqpx.Delivery) []any { return []any{string(d.Body), d.DueAt.UnixMilli()} })
}

// A payment and the expiry of the same order arrive concurrently: exactly one of them takes effect.
func TestIdempotencyGuardAgainstPayment(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		o := newOrders(t, db)
		handle := db.idempotentHandler(o.cancel, o.guard())
		for round := range 50 {
			id := fmt.Sprint(round)
			o.add(t, id)
			var paid int64
			for _, err := range together(2, func(i int) error {
				if i == 0 {
					return handle(t.Context(), orderDelivery(id, id))
				}
				res, err := db.ExecContext(t.Context(), db.bind("UPDATE orders SET status = 'paid' WHERE id = ? AND status = 'unpaid'"), id)
				if err == nil {
					paid, err = res.RowsAffected()
				}
				return err
			}) {
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := o.effects(t, id); n+paid != 1 {
				t.Fatalf("round %d: the order was cancelled %d times and paid %d times, want 1 in total", round, n, paid)
			}
		}
	})
}

// If the connection is lost during the transaction, the handler returns an error, and the next delivery of the message
// has the effect.
func TestIdempotencyConnectionLost(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		kill := map[idempotency.Dialect]string{
			idempotency.PostgreSQL: "SELECT pg_terminate_backend(pg_backend_pid())",
			idempotency.MySQL:      "KILL CONNECTION_ID()",
		}[db.dialect]
		if kill == "" {
			t.Skip("skipped: SQLite has no connection to lose")
		}
		o := newOrders(t, db, "1")
		first := true
		handle := db.idempotentHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
			err := o.cancel(ctx, tx, d)
			if first {
				first = false
				_, _ = tx.ExecContext(ctx, kill) // the commit fails on the dead connection
			}
			return err
		})
		// pgx reports that it could not even send the commit.
		if err := handle(t.Context(), orderDelivery("m", "1")); err == nil || errors.Is(err, idempotency.ErrCommit) == (db.pool != nil) {
			t.Fatalf("got error %v, want idempotency.ErrCommit with database/sql and another error with pgx (pgx: %t)", err, db.pool != nil)
		}
		for range 2 {
			if err := handle(t.Context(), orderDelivery("m", "1")); err != nil {
				t.Fatal(err)
			}
		}
		if n := o.effects(t, "1"); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	})
}

func TestIdempotencyMigrate(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		handle := db.idempotentHandler(func(context.Context, schedule.Executor, *amqpx.Delivery) error { return nil })
		if err := handle(t.Context(), orderDelivery("m", "1")); !errors.Is(err, idempotency.ErrNoTable) {
			t.Fatalf("got error %v, want ErrNoTable", err)
		}
		for _, err := range together(8, func(int) error { return db.migrateRecords(t.Context()) }) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := handle(t.Context(), orderDelivery("m", "1")); err != nil {
			t.Fatal(err)
		}
		// Migrate accepts the schema that Migrations returns for other migration tools.
		db.mustExec(t, "DROP TABLE rabbitdelay_processed")
		db.mustExec(t, "DROP TABLE rabbitdelay_schema")
		for statement := range strings.SplitSeq(idempotency.Migrations(db.dialect), ";\n") {
			if strings.TrimSpace(statement) != "" {
				db.mustExec(t, statement)
			}
		}
		if err := handle(t.Context(), orderDelivery("m", "1")); err != nil {
			t.Fatal(err)
		}
		if err := db.migrateRecords(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_schema WHERE component = 'idempotency'"); n != 1 {
			t.Errorf("%d schema versions are recorded, want 1", n)
		}
	})
}

func TestIdempotencyPurge(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		newOrders(t, db)
		tx, commit, _ := db.begin(t)
		now := time.Now().UnixMilli()
		for i := range 300 {
			age := int64(2 * time.Hour / time.Millisecond)
			if i >= 260 {
				age = int64(30 * time.Minute / time.Millisecond)
			}
			if _, err := tx.ExecContext(t.Context(), db.bind("INSERT INTO rabbitdelay_processed VALUES ('q', ?, 'done', ?)"), fmt.Sprint(i), now-age); err != nil {
				t.Fatal(err)
			}
		}
		commit()
		n, err := db.purgeRecords(t.Context(), time.Hour, 50)
		if err != nil || n != 260 {
			t.Errorf("purged %d records (error %v), want 260", n, err)
		}
		if left := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_processed"); left != 40 {
			t.Errorf("%d rows are left, want 40", left)
		}
	})
}
