package lab

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// store is the demo's business database: orders, and a row per effect that a
// consumer committed.
type store struct {
	db      *sql.DB
	dialect idempotency.Dialect
	url     config.URL
	dir     string // to be removed; empty with a database that was given
	orders  string // names of the tables
	effects string
	scope   string

	posts     string // tables of the posts' story
	published string
	postScope string // its queue

	space string  // schema or database made for this run; empty where there is none
	outer *sql.DB // the database in which it was made

	stillUnpaid string // the guard's query
}

// openStore makes the demo's tables in the database, or in a new SQLite one.
func openStore(ctx context.Context, u config.URL, run string) (_ *store, err error) {
	s := &store{
		url: u, orders: "rabbitdelay_demo_orders_" + run, effects: "rabbitdelay_demo_effects_" + run,
		posts: "rabbitdelay_demo_posts_" + run, published: "rabbitdelay_demo_published_" + run,
	}
	if u == "" {
		if s.dir, err = temporaryDirectory(); err != nil {
			return nil, err
		}
		s.url = config.URL("sqlite:" + filepath.Join(s.dir, "orders.db"))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if s.db, s.dialect, err = config.OpenDB(s.url); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if s.dir == "" {
		if err := s.makeSpace(ctx, "rabbitdelay_demo_"+run); err != nil {
			return nil, fmt.Errorf("database: %w", err)
		}
	}
	s.db.SetMaxOpenConns(32)
	if err := idempotency.Migrate(ctx, s.db); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	for _, q := range []string{
		"CREATE TABLE " + s.orders + " (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL, due_ms BIGINT NOT NULL, paid_ms BIGINT)",
		"CREATE TABLE " + s.effects + " (order_id VARCHAR(64) NOT NULL, message_id VARCHAR(64) NOT NULL, at_ms BIGINT NOT NULL)",
	} {
		if _, err := s.db.ExecContext(ctx, q); err != nil {
			return nil, fmt.Errorf("database: %w", err)
		}
	}
	s.stillUnpaid = s.bind("SELECT 1 FROM " + s.orders + " WHERE id = ? AND status = 'unpaid' AND due_ms <= ?")
	if s.dialect != idempotency.SQLite { // which has one writer
		s.stillUnpaid += " FOR UPDATE"
	}
	return s, nil
}

// bind writes question marks as the dialect's placeholders.
func (s *store) bind(query string) string {
	if s.dialect != idempotency.PostgreSQL {
		return query
	}
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

func (s *store) describe() string {
	if s.dir != "" {
		return "SQLite in a temporary directory"
	}
	return s.url.String()
}

// close removes what the demo made.
func (s *store) close(ctx context.Context) error {
	var errs []error
	if s.db != nil {
		if s.dir == "" && s.space == "" {
			for _, table := range []string{s.orders, s.effects, s.posts, s.published} {
				_, err := s.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+table)
				errs = append(errs, err)
			}
			if s.scope != "" {
				_, err := s.db.ExecContext(ctx, s.bind("DELETE FROM rabbitdelay_processed WHERE scope = ?"), s.scope)
				errs = append(errs, err)
			}
			if s.postScope != "" {
				_, err := s.db.ExecContext(ctx, s.bind("DELETE FROM rabbitdelay_tasks WHERE queue = ?"), s.postScope)
				errs = append(errs, err)
			}
		}
		errs = append(errs, s.db.Close())
	}
	if s.space != "" {
		errs = append(errs, s.removeSpace(ctx))
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *store) place(ctx context.Context, o *order) error {
	_, err := s.db.ExecContext(ctx, s.bind("INSERT INTO "+s.orders+" (id, status, due_ms) VALUES (?, 'unpaid', ?)"), o.id, o.due)
	if err != nil {
		return fmt.Errorf("placing order %s: %w", o.id, err)
	}
	return nil
}

// pay tells whether the order could still be paid.
func (s *store) pay(ctx context.Context, id string, at time.Time) (bool, error) {
	res, err := s.db.ExecContext(ctx, s.bind("UPDATE "+s.orders+" SET status = 'paid', paid_ms = ? WHERE id = ? AND status = 'unpaid'"), at.UnixMilli(), id)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// cancel is the effect of a message. It counts itself, so that one that is
// committed twice shows.
func (s *store) cancel(ctx context.Context, tx *sql.Tx, id, message string, at time.Time) error {
	if _, err := tx.ExecContext(ctx, s.bind("UPDATE "+s.orders+" SET status = 'cancelled' WHERE id = ?"), id); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.bind("INSERT INTO "+s.effects+" (order_id, message_id, at_ms) VALUES (?, ?, ?)"), id, message, at.UnixMilli())
	return err
}

// facts reads what the database holds at the end. scope is the queue.
func (s *store) facts(ctx context.Context, scope string) (f facts, err error) {
	f = facts{orders: map[string]storedOrder{}, effects: map[string][]int64{}, processed: map[string]bool{}}
	err = s.each(ctx, "SELECT id, status, due_ms FROM "+s.orders, nil, func(rows *sql.Rows) error {
		var id string
		var o storedOrder
		err := rows.Scan(&id, &o.status, &o.due)
		f.orders[id] = o
		return err
	})
	if err != nil {
		return f, err
	}
	err = s.each(ctx, "SELECT order_id, at_ms FROM "+s.effects, nil, func(rows *sql.Rows) error {
		var id string
		var at int64
		err := rows.Scan(&id, &at)
		f.effects[id] = append(f.effects[id], at)
		return err
	})
	if err != nil {
		return f, err
	}
	err = s.each(ctx, "SELECT message_id FROM rabbitdelay_processed WHERE scope = ?", []any{scope}, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		f.processed[id] = true
		return err
	})
	return f, err
}

func (s *store) each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	rows, err := s.db.QueryContext(ctx, s.bind(query), args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
