package orm

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

type sqlxLibrary struct{ db *sqlx.DB }

func TestSqlx(t *testing.T) {
	Check(t, func(_ *testing.T, db *sql.DB, dialect schedule.Dialect) Library {
		return sqlxLibrary{sqlx.NewDb(db, string(dialect))}
	})
}

func (l sqlxLibrary) InTx(ctx context.Context, do func(ex schedule.Executor, insert func(o Order) error) error) error {
	tx, err := l.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	err = do(tx, func(o Order) error {
		_, err := tx.NamedExecContext(ctx, "INSERT INTO orders (id, status) VALUES (:id, :status)", o)
		return err
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (l sqlxLibrary) Many() schedule.Executor { return l.db }

func (l sqlxLibrary) Expire(ctx context.Context, tx *sql.Tx, id string) error {
	x := &sqlx.Tx{Tx: tx, Mapper: l.db.Mapper}
	var o Order
	if err := x.GetContext(ctx, &o, l.db.Rebind("SELECT * FROM orders WHERE id = ? AND status = 'unpaid'"), id); err != nil {
		return err
	}
	_, err := x.ExecContext(ctx, l.db.Rebind("UPDATE orders SET status = ? WHERE id = ?"), "expired", o.ID)
	return err
}
