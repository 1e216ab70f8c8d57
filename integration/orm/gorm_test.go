package orm

import (
	"context"
	"database/sql"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

type gormLibrary struct {
	db   *gorm.DB
	pool *sql.DB
}

func TestGorm(t *testing.T) {
	for name, cfg := range map[string]*gorm.Config{"plain": {}, "prepared": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			Check(t, func(t *testing.T, db *sql.DB, dialect schedule.Dialect) Library {
				driver := postgres.New(postgres.Config{Conn: db})
				if dialect == schedule.SQLite {
					driver = sqlite.New(sqlite.Config{Conn: db})
				}
				g, err := gorm.Open(driver, cfg)
				must(t, err)
				return gormLibrary{g, db}
			})
		})
	}
}

func (l gormLibrary) InTx(ctx context.Context, do func(ex schedule.Executor, insert func(o Order) error) error) error {
	return l.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		return do(tx.Statement.ConnPool, func(o Order) error { return tx.Create(&o).Error })
	})
}

func (l gormLibrary) Many() schedule.Executor { return l.pool }

func (l gormLibrary) Expire(ctx context.Context, tx *sql.Tx, id string) error {
	g := l.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	g.Statement.ConnPool = tx
	var o Order
	if err := g.First(&o, "id = ? AND status = ?", id, "unpaid").Error; err != nil {
		return err
	}
	return g.Model(&o).Update("status", "expired").Error
}
