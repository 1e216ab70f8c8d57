package idempotency_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, c driver.Connector) *sql.DB {
	t.Helper()
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	if err := idempotency.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	return db
}

func effect(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", d.ID)
	return err
}

func countEffects(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM effects").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// connector opens SQLite through a driver of an unknown type. It can lose the answer to the next commit.
type connector struct {
	dsn  string
	lose *atomic.Int32 // what the next Commit does before it fails: 1 commits, 2 rolls back
}

func newConnector(t *testing.T) connector {
	t.Helper()
	return connector{filepath.Join(t.TempDir(), "x.db") + "?_pragma=busy_timeout(180000)&_pragma=synchronous(off)", &atomic.Int32{}}
}

func (c connector) Driver() driver.Driver { return unknownDriver{c} }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := (&sqlite.Driver{}).Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return lossy{conn.(sqliteConn), c.lose}, nil
}

type unknownDriver struct{ connector }

func (d unknownDriver) Open(string) (driver.Conn, error) { return d.Connect(context.Background()) }

type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
}

type lossy struct {
	sqliteConn
	lose *atomic.Int32
}

func (l lossy) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := l.sqliteConn.BeginTx(ctx, opts)
	return lossyTx{tx, l.lose}, err
}

type lossyTx struct {
	driver.Tx
	lose *atomic.Int32
}

var errLost = errors.New("connection lost")

func (l lossyTx) Commit() error {
	switch l.lose.Swap(0) {
	case 1:
		return errors.Join(errLost, l.Tx.Commit())
	case 2:
		return errors.Join(errLost, l.Tx.Rollback())
	}
	return l.Tx.Commit()
}

// If the answer to a commit is lost, the handler cannot tell whether it was committed. When the message is delivered
// again, the record of its effect shows whether the handler must run again.
func TestCommitOutcomeUnknown(t *testing.T) {
	for name, lose := range map[string]int32{"happened": 1, "did not happen": 2} {
		t.Run(name, func(t *testing.T) {
			c := newConnector(t)
			db := open(t, c)
			var skipped int
			handle := idempotency.Handler(db, effect, idempotency.OnSkip(func(context.Context, *amqpx.Delivery, idempotency.SkipReason) { skipped++ }))
			c.lose.Store(lose)
			err := handle(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"})
			if !errors.Is(err, idempotency.ErrCommit) || !errors.Is(err, errLost) {
				t.Fatalf("the first delivery: got the error %v, want ErrCommit and %v", err, errLost)
			}
			if err := handle(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"}); err != nil {
				t.Fatal(err)
			}
			if n := countEffects(t, db); n != 1 {
				t.Errorf("after a commit with an unknown outcome: got %d effects, want 1", n)
			}
			if want := int(2 - lose); skipped != want {
				t.Errorf("after a commit with an unknown outcome: got %d calls of OnSkip, want %d", skipped, want)
			}
		})
	}
}

// Messages that share a transaction have one effect each, even if one of them fails. OnSkip is called for duplicates
// and for messages that the condition declines.
func TestGroup(t *testing.T) {
	c := newConnector(t)
	db := open(t, c)
	const n = 60
	bad := errors.New("bad message")
	var mu sync.Mutex
	var skipped []string
	skip := func(_ context.Context, d *amqpx.Delivery, r idempotency.SkipReason) {
		mu.Lock()
		defer mu.Unlock()
		skipped = append(skipped, string(r)+" "+d.ID)
	}
	guard := func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) (bool, error) { return d.ID != "m7", nil }
	handle := idempotency.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if err := effect(ctx, tx, d); err != nil {
			return err
		}
		if d.ID == "m3" {
			return bad
		}
		return nil
	}, idempotency.WithGroup(16), idempotency.When(guard), idempotency.OnSkip(skip))
	for round := range 6 {
		if round == 1 {
			c.lose.Store(1) // the answer to one commit is lost
		}
		var group sync.WaitGroup
		errs := make([]error, n)
		for i := range n {
			group.Go(func() {
				errs[i] = handle(t.Context(), &amqpx.Delivery{ID: fmt.Sprintf("m%d", i), Queue: "q"})
			})
		}
		group.Wait()
		for i, err := range errs {
			if i == 3 && !errors.Is(err, bad) || i != 3 && err != nil && !errors.Is(err, idempotency.ErrCommit) {
				t.Errorf("round %d, message %d: got %v, want %v for message 3, and nil or ErrCommit for the others", round, i, err, bad)
			}
		}
	}
	if got := countEffects(t, db); got != n-2 {
		t.Errorf("after a group with two bad messages: got %d effects, want %d, one for each message except m3 and m7", got, n-2)
	}
	if !slices.Contains(skipped, "guarded m7") || slices.Contains(skipped, "duplicate m3") {
		t.Errorf(`OnSkip got %q, want "guarded m7" among the calls and not "duplicate m3"`, skipped)
	}
}

func TestKeys(t *testing.T) {
	db := open(t, newConnector(t))
	rejected := func(d *amqpx.Delivery, opts ...idempotency.HandlerOption) {
		t.Helper()
		if err := idempotency.Handler(db, effect, opts...)(t.Context(), d); !errors.Is(err, idempotency.ErrKey) {
			t.Errorf("the handler with the ID %q: got the error %v, want ErrKey", d.ID, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 256), "a\x00b", "\xff"} {
		rejected(&amqpx.Delivery{ID: id, Queue: "q"})
	}
	rejected(&amqpx.Delivery{ID: "m"}, idempotency.WithKey(func(*amqpx.Delivery) (string, error) { return "", nil }))
	rejected(&amqpx.Delivery{ID: "m"}, idempotency.WithKey(func(*amqpx.Delivery) (string, error) { return "m", errors.New("no such field") }))
	if n := countEffects(t, db); n != 0 {
		t.Fatalf("messages without a valid key: got %d effects, want 0", n)
	}
	byBody := idempotency.Handler(db, effect, idempotency.WithScope("orders"),
		idempotency.WithKey(func(d *amqpx.Delivery) (string, error) { return string(d.Body), nil }))
	for _, d := range []*amqpx.Delivery{{ID: "1", Queue: "a", Body: []byte("x")}, {ID: "2", Queue: "b", Body: []byte("x")}} {
		if err := byBody(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if n := countEffects(t, db); n != 1 {
		t.Errorf("two messages with the same key and scope: got %d effects, want 1", n)
	}
}

// Handler rejects a task that was scheduled for the queue itself, but accepts one that was scheduled for an exchange.
func TestTasks(t *testing.T) {
	db := open(t, newConnector(t))
	h := idempotency.Handler(db, effect)
	err := h(t.Context(), &amqpx.Delivery{ID: "task", Queue: "q", Version: 1})
	if !errors.Is(err, idempotency.ErrIsTask) || !amqpx.IsRejected(err) || countEffects(t, db) != 0 {
		t.Errorf("task for a queue: got error %v and %d effects, want a rejection with ErrIsTask and 0 effects", err, countEffects(t, db))
	}
	if err := h(t.Context(), &amqpx.Delivery{ID: "post", Queue: "q", Exchange: "events", Version: 1}); err != nil || countEffects(t, db) != 1 {
		t.Errorf("task for an exchange: got error %v and %d effects, want nil and 1", err, countEffects(t, db))
	}
}

func TestHandlerMustNotEndTheTransaction(t *testing.T) {
	db := open(t, newConnector(t))
	handle := idempotency.Handler(db, func(_ context.Context, tx *sql.Tx, _ *amqpx.Delivery) error { return tx.Rollback() })
	if err := handle(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"}); err == nil || !strings.Contains(err.Error(), "ended the transaction itself") {
		t.Errorf(`a handler that rolls back: got the error %v, want one with "ended the transaction itself"`, err)
	}
}

func TestWrongDialect(t *testing.T) {
	db := open(t, newConnector(t))
	handle := idempotency.Handler(db, effect, idempotency.WithDialect("oracle"))
	if err := handle(t.Context(), &amqpx.Delivery{ID: "m", Queue: "q"}); err == nil || !strings.Contains(err.Error(), `"oracle"`) {
		t.Errorf(`a handler with an unknown dialect: got the error %v, want one with "oracle" in its text`, err)
	}
}

func TestRunPurge(t *testing.T) {
	db := open(t, newConnector(t))
	old := time.Now().Add(-time.Hour).UnixMilli()
	if _, err := db.ExecContext(t.Context(),
		"INSERT INTO rabbitdelay_processed VALUES ('q', 'a', 'done', ?), ('q', 'b', 'done', ?)", old,
		time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var deleted int64
	err := idempotency.RunPurge(ctx, db, idempotency.Retention{Keep: time.Minute, Every: time.Millisecond}, func(n int64, err error) {
		if err != nil {
			t.Error(err)
		}
		if n == 0 { // the second purge finds nothing to delete
			cancel()
		}
		deleted += n
	})
	if err != nil || deleted != 1 {
		t.Errorf("RunPurge: got %d rows deleted and error %v, want 1 and nil", deleted, err)
	}
	for _, r := range []idempotency.Retention{{Keep: -time.Hour}, {Keep: 30}, {Every: -1}, {Batch: -1}, {Batch: 1_000_000}} {
		if err := idempotency.RunPurge(t.Context(), db, r, nil); err == nil || !strings.Contains(err.Error(), "retention.") {
			t.Errorf(`RunPurge with %+v: got error %v, want one with "retention." in its text`, r, err)
		}
	}
	for age, want := range map[time.Duration]string{-time.Hour: "expected 0 or more", 30: "30*time.Second"} {
		if _, err := idempotency.Purge(t.Context(), db, age, 100); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Purge with an age of %d ns: got error %v, want one with %q", age, err, want)
		}
	}
}
