package orm

import (
	"context"
	"database/sql"
	"testing"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

type bunLibrary struct{ db *bun.DB }

func TestBun(t *testing.T) {
	Check(t, func(_ *testing.T, db *sql.DB, dialect schedule.Dialect) Library {
		var d schema.Dialect = pgdialect.New()
		if dialect == schedule.SQLite {
			d = sqlitedialect.New()
		}
		return bunLibrary{bun.NewDB(db, d)}
	})
}

func (l bunLibrary) InTx(ctx context.Context, do func(ex schedule.Executor, insert func(o Order) error) error) error {
	return l.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return do(tx, func(o Order) error {
			_, err := tx.NewInsert().Model(&o).Exec(ctx)
			return err
		})
	})
}

func (l bunLibrary) Many() schedule.Executor { return l.db }

func (l bunLibrary) Expire(ctx context.Context, tx *sql.Tx, id string) error {
	var o Order
	if err := l.db.NewSelect().Conn(tx).Model(&o).Where("id = ? AND status = 'unpaid'", id).Scan(ctx); err != nil {
		return err
	}
	o.Status = "expired"
	_, err := l.db.NewUpdate().Conn(tx).Model(&o).WherePK().Exec(ctx)
	return err
}
