package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

// SQLite is the embedded database, in addition to the kinds of package database.
const SQLite database.Kind = "SQLite"

// business is the business database of a run.
type business struct {
	kind   database.Kind
	server *database.Server // nil for SQLite
	wire   *wire            // proxy between consumers and server; nil for SQLite
	db     *sql.DB          // connects directly to the server, and not through the wire
	tasks  *sql.DB          // for the task store; also direct
	driver string
	dsn    string // for consumers, through the wire
}

func startBusiness(ctx context.Context, kind database.Kind, dir string) (_ *business, err error) {
	b := &business{kind: kind}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	var own string // the DSN of the server itself, without the wire
	if kind == SQLite {
		b.driver = "sqlite"
		b.dsn = filepath.Join(dir, "business.db") + "?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_txlock=immediate"
		own = b.dsn
	} else {
		if b.server, err = database.Start(ctx, kind, database.Options{}); err != nil {
			return nil, err
		}
		own = b.server.DSN()
		b.driver = b.server.Driver()
		if err := b.throughWire(); err != nil {
			return nil, err
		}
	}
	if b.db, err = sql.Open(b.driver, own); err != nil {
		return nil, err
	}
	// Keep no idle connections, because they do not survive a restart of the server. A task store handles that, and
	// would otherwise open a connection for every statement.
	b.db.SetMaxIdleConns(0)
	if b.tasks, err = sql.Open(b.driver, own); err != nil {
		return nil, err
	}
	b.tasks.SetMaxIdleConns(8)
	if err := idempotency.Migrate(ctx, b.db); err != nil {
		return nil, err
	}
	statements := []string{
		"CREATE TABLE effects (message_id VARCHAR(64) NOT NULL, at_us BIGINT NOT NULL, process INTEGER NOT NULL)",
		"CREATE TABLE tally (slot INTEGER NOT NULL PRIMARY KEY, n BIGINT NOT NULL)",
	}
	for slot := range tallySlots {
		statements = append(statements, fmt.Sprintf("INSERT INTO tally VALUES (%d, 0)", slot))
	}
	for _, s := range statements {
		if _, err := b.db.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// throughWire sets the consumers' data source name. It points to the wire and has a lock timeout of one second.
func (b *business) throughWire() error {
	u, err := url.Parse(b.server.URL())
	if err != nil {
		return errors.New("the database's URL cannot be parsed")
	}
	if b.wire, err = newWire(u.Host); err != nil {
		return err
	}
	switch b.kind {
	case database.PostgreSQL:
		u.Host = b.wire.addr()
		q := u.Query()
		q.Set("sslmode", "disable")
		q.Set("connect_timeout", "3")
		q.Set("lock_timeout", "1000")
		u.RawQuery = q.Encode()
		b.dsn = u.String()
	case database.MariaDB, database.MySQL:
		dsn := strings.Replace(b.server.DSN(), "tcp("+u.Host+")", "tcp("+b.wire.addr()+")", 1)
		b.dsn = dsn + "&timeout=3s&innodb_lock_wait_timeout=1&lock_wait_timeout=1"
	default:
		return fmt.Errorf("database %q; want %s, %s, %s or %s", b.kind, database.PostgreSQL, database.MariaDB, database.MySQL, SQLite)
	}
	return nil
}

func (b *business) close() error {
	var errs []error
	for _, db := range []*sql.DB{b.db, b.tasks} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if b.wire != nil {
		b.wire.close()
	}
	if b.server != nil {
		errs = append(errs, b.server.Close())
	}
	return errors.Join(errs...)
}

// effects reads the committed effects. The tally must agree with the rows, because the same transactions write both.
func (b *business) effects(ctx context.Context) ([]Effect, error) {
	var total int
	if err := b.db.QueryRowContext(ctx, "SELECT COALESCE(SUM(n), 0) FROM tally").Scan(&total); err != nil {
		return nil, err
	}
	rows, err := b.db.QueryContext(ctx, "SELECT message_id, at_us FROM effects")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := make([]Effect, 0, total)
	for rows.Next() {
		var e Effect
		var us int64
		if err := rows.Scan(&e.ID, &us); err != nil {
			return nil, err
		}
		e.At = time.UnixMicro(us)
		list = append(list, e)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	// Only fewer rows than the tally is an error. Rows are read after the tally, and consumers may be writing.
	if len(list) < total {
		return nil, fmt.Errorf("got %d effects, want at least %d as in the tally; some transactions were committed only partly", len(list), total)
	}
	return list, nil
}

// lockTable locks the table for longer than the consumers' lock timeout, so that they cannot record messages.
func (b *business) lockTable(ctx context.Context, hold time.Duration) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	lock, unlock := "BEGIN; LOCK TABLE rabbitdelay_processed IN ACCESS EXCLUSIVE MODE", "ROLLBACK"
	switch b.kind {
	case database.MariaDB, database.MySQL:
		lock, unlock = "LOCK TABLES rabbitdelay_processed WRITE", "UNLOCK TABLES"
	case SQLite:
		lock = "BEGIN IMMEDIATE"
	}
	if _, err := conn.ExecContext(ctx, lock); err != nil {
		return err
	}
	wait(ctx, hold)
	_, err = conn.ExecContext(context.WithoutCancel(ctx), unlock)
	return err
}

// conflict competes with consumers for the tally, in transactions that cause theirs to deadlock or to fail with a
// serialization error.
func (b *business) conflict(ctx context.Context, hold time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	for ctx.Err() == nil {
		tx, err := b.db.BeginTx(ctx, nil)
		if err != nil {
			continue // the time is over, or another fault has stopped the database
		}
		for slot := tallySlots - 1; slot >= 0; slot-- {
			if _, err = tx.ExecContext(ctx, fmt.Sprintf("UPDATE tally SET n = n + 0 WHERE slot = %d", slot)); err != nil {
				break
			}
		}
		if err == nil {
			wait(ctx, 20*time.Millisecond)
			_ = tx.Commit()
		} else {
			_ = tx.Rollback()
		}
		wait(ctx, 10*time.Millisecond)
	}
	return nil
}

// wait waits for a fault's fixed duration, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
