package ent

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/orm"
	"github.com/rabbitdelay/rabbitdelay/integration/orm/testdata/ent/gen"
	"github.com/rabbitdelay/rabbitdelay/integration/orm/testdata/ent/gen/order"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := database.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

type library struct {
	client  *gen.Client
	dialect string
}

func TestEnt(t *testing.T) {
	orm.Check(t, func(_ *testing.T, db *sql.DB, d schedule.Dialect) orm.Library {
		name := dialect.Postgres
		if d == schedule.SQLite {
			name = dialect.SQLite
		}
		return library{gen.NewClient(gen.Driver(entsql.OpenDB(name, db))), name}
	})
}

func (l library) InTx(ctx context.Context, do func(ex schedule.Executor, insert func(o orm.Order) error) error) error {
	tx, err := l.client.Tx(ctx)
	if err != nil {
		return err
	}
	err = do(tx, func(o orm.Order) error { return tx.Order.Create().SetID(o.ID).SetStatus(o.Status).Exec(ctx) })
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (l library) Many() schedule.Executor { return schedule.NoTx }

// inTx is a driver whose statements run in a transaction that the caller commits or rolls back. Without it, ent would
// start a transaction for each change.
type inTx struct{ *entsql.Driver }

func (d inTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

func (l library) Expire(ctx context.Context, tx *sql.Tx, id string) error {
	client := gen.NewClient(gen.Driver(inTx{entsql.NewDriver(l.dialect, entsql.Conn{ExecQuerier: tx})}))
	o, err := client.Order.Query().Where(order.ID(id), order.Status("unpaid")).Only(ctx)
	if err != nil {
		return err
	}
	return o.Update().SetStatus("expired").Exec(ctx)
}
