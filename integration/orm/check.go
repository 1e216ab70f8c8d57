// Package orm tests tasks together with sqlx, gorm, bun and ent. Tasks are scheduled in the libraries' transactions,
// and handlers use the libraries in their own transactions. The package is a separate module, so that rabbitdelay does
// not depend on the libraries.
package orm

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver named pgx
	_ "modernc.org/sqlite"             // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

// Order is a row of a business table.
type Order struct {
	ID     string `bun:",pk"   db:"id" gorm:"primaryKey"`
	Status string `db:"status"`
}

// Library is the interface that Check requires of a library.
type Library interface {
	// InTx runs do in a transaction of the library that commits if do returns nil. The function insert writes an order
	// in that transaction, and ex is the executor to pass to Schedule.
	InTx(ctx context.Context, do func(ex schedule.Executor, insert func(o Order) error) error) error
	// Many returns the executor for a batch outside of a transaction.
	Many() schedule.Executor
	// Expire reads an unpaid order and sets its status, using the library in the handler's transaction.
	Expire(ctx context.Context, tx *sql.Tx, id string) error
}

var errUndo = errors.New("undo this transaction")

// Check tests a library on SQLite and on PostgreSQL.
func Check(t *testing.T, open func(t *testing.T, db *sql.DB, dialect schedule.Dialect) Library) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "x.db")+"?_pragma=busy_timeout(180000)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		checkOn(t, db, schedule.SQLite, open)
	})
	t.Run("postgres", func(t *testing.T) {
		db, err := sql.Open("pgx", ownDatabase(t))
		if err != nil {
			t.Fatal(err)
		}
		checkOn(t, db, schedule.PostgreSQL, open)
	})
}

// ownDatabase creates an empty database for the test and returns its data source name.
func ownDatabase(t *testing.T) string {
	t.Helper()
	server := database.Shared(t, database.PostgreSQL)
	u, err := url.Parse(server.DSN())
	must(t, err)
	admin, err := sql.Open("pgx", server.DSN())
	must(t, err)
	name := fmt.Sprintf("rd_orm_%d_%d", os.Getpid(), databases.Add(1))
	must(t, run(t, admin, "CREATE DATABASE "+name))
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
			t.Error(err)
		}
		_ = admin.Close()
	})
	u.Path = "/" + name
	return u.String()
}

var databases atomic.Int64

func run(t *testing.T, db *sql.DB, query string) error {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query)
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkOn(t *testing.T, db *sql.DB, dialect schedule.Dialect, open func(t *testing.T, db *sql.DB, dialect schedule.Dialect) Library) {
	t.Helper()
	defer func() { _ = db.Close() }()
	must(t, schedule.Migrate(t.Context(), db))
	must(t, run(t, db, "CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL)"))
	tasks, err := schedule.New(db, nil, schedule.Config{})
	must(t, err)
	lib := open(t, db, dialect)
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	// These bytes would break a query if arguments were written into it.
	body := []byte{0, 255, '?', '\'', '$', '1', '\\'}
	place := func(id string, end error) error {
		return lib.InTx(t.Context(), func(ex schedule.Executor, insert func(o Order) error) error {
			task := schedule.Task{ID: id, Queue: "orders.expire", DeliverAt: due, Body: body, Headers: map[string]string{"k": "it's ?"}}
			if err := errors.Join(insert(Order{id, "unpaid"}), tasks.Schedule(t.Context(), ex, task)); err != nil {
				return err
			}
			// Reads, and scheduling an ID that already exists, must leave the transaction usable.
			if err := tasks.Schedule(t.Context(), ex, task); !errors.Is(err, schedule.ErrExists) {
				return fmt.Errorf("scheduling an existing ID: got error %w, want schedule.ErrExists", err)
			}
			if got, err := tasks.Get(t.Context(), ex, id); err != nil || !bytes.Equal(got.Body, body) || got.Headers["k"] != "it's ?" {
				return fmt.Errorf("reading the task in the transaction: got %+v and error %w, want the scheduled task", got, err)
			}
			return end
		})
	}
	must(t, place("kept", nil))
	if err := place("undone", errUndo); !errors.Is(err, errUndo) {
		t.Fatalf("rolling back: got error %v, want errUndo", err)
	}
	if _, err := tasks.Get(t.Context(), schedule.NoTx, "undone"); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("reading the task of a rolled-back transaction: got error %v, want schedule.ErrNotFound", err)
	}
	// The batch needs two statements. The second one fails, and then neither may take effect.
	batch := make([]schedule.Task, 501)
	for i := range batch {
		batch[i] = schedule.Task{ID: fmt.Sprint("b", i), Queue: "q", DeliverAt: due}
	}
	must(t, tasks.Schedule(t.Context(), schedule.NoTx, batch[500]))
	if err := tasks.ScheduleBatch(t.Context(), lib.Many(), batch); !errors.Is(err, schedule.ErrExists) {
		t.Errorf("scheduling a batch with an existing ID: got error %v, want schedule.ErrExists", err)
	}
	if _, err := tasks.Get(t.Context(), schedule.NoTx, "b0"); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("reading a task of a failed batch: got error %v, want schedule.ErrNotFound", err)
	}

	fail := true
	handle := schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		err := lib.Expire(ctx, tx, d.ID)
		if fail && err == nil {
			err = errUndo
		}
		return err
	})
	status := func() (status string) {
		must(t, db.QueryRowContext(t.Context(), "SELECT status FROM orders WHERE id = 'kept'").Scan(&status))
		return status
	}
	delivery := &amqpx.Delivery{ID: "kept", Queue: "orders.expire", Version: 1, Attempt: 1, DueAt: due}
	if err := handle(t.Context(), delivery); !errors.Is(err, errUndo) || status() != "unpaid" {
		t.Errorf("after a failing handler: got error %v and the order status %s, want errUndo and unpaid", err, status())
	}
	fail = false
	must(t, handle(t.Context(), delivery))
	if got, err := tasks.Get(t.Context(), schedule.NoTx, "kept"); err != nil || got.Status != schedule.StatusDone || status() != "expired" {
		t.Errorf(`after the handler: got the task status %s, the order status %s and error %v, want done, expired and nil`, got.Status, status(), err)
	}
}
