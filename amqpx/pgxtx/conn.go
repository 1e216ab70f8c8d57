package pgxtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Executor is implemented by pgx.Tx, *pgxpool.Pool, *pgxpool.Conn and *pgx.Conn.
type Executor interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// On returns an Executor for the methods of a *schedule.Store. With On(tx) they run in the transaction tx, and with
// On(pool) or On(conn) they take effect immediately. Operations with several statements run in one transaction on a
// pool, and also on a connection that is not in a transaction. If ex is nil, the methods fail with
// schedule.ErrNoExecutor. To use the store's own pool, pass schedule.NoTx.
func On(ex Executor) schedule.Executor {
	if sqldb.IsNil(ex) {
		return nil
	}
	switch x := ex.(type) {
	case *pgxpool.Pool:
		return sqldb.Foreign(onPool(x))
	case *pgxpool.Conn:
		return onConn(x, x.Conn())
	case *pgx.Conn:
		return onConn(x, x)
	}
	return sqldb.Foreign(conn{ex})
}

// beginner is an Executor that can begin a transaction.
type beginner interface {
	Executor
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

func onConn(b beginner, c *pgx.Conn) schedule.Executor {
	if c.PgConn().TxStatus() == 'I' {
		return sqldb.Foreign(database{conn{b}, b})
	}
	return sqldb.Foreign(conn{b})
}

// conn implements sqldb.Conn.
type conn struct{ ex Executor }

func (c conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := c.ex.Exec(ctx, query, args...)
	return affected(tag.RowsAffected()), sqldb.ExplainServer(err)
}

func (c conn) QueryContext(ctx context.Context, query string, args ...any) (sqldb.Rows, error) {
	r, err := c.ex.Query(ctx, query, args...)
	if err != nil {
		return nil, sqldb.ExplainServer(err)
	}
	return rows{r, noBatch}, nil
}

func (c conn) QueryRowContext(ctx context.Context, query string, args ...any) sqldb.Row {
	return sqldb.OneRow(c.QueryContext(ctx, query, args...))
}

// affected is a sql.Result that has only the number of affected rows.
type affected int64

func (a affected) RowsAffected() (int64, error) { return int64(a), nil }

func (affected) LastInsertId() (int64, error) {
	return 0, errors.New("PostgreSQL does not report a last insert id; use RETURNING")
}

// rows is the result of a query, which may be the last statement of a batch.
type rows struct {
	pgx.Rows

	end func() error // closes the batch
}

func noBatch() error { return nil }

func (r rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	_ = r.end() // ignore the error: Err returns it too
	return false
}

func (r rows) Err() error { return sqldb.ExplainServer(r.Rows.Err()) }

func (r rows) Close() error {
	r.Rows.Close()
	ended := r.end()
	if err := r.Err(); err != nil {
		return err
	}
	return ended
}

// database implements sqldb.DB.
type database struct {
	conn

	b beginner
}

func onPool(pool *pgxpool.Pool) database { return database{conn{pool}, pool} }

// Listener returns a listener that wakes a relay on the pool, or nil for a single connection.
func (d database) Listener() schedule.Listener {
	pool, ok := d.b.(*pgxpool.Pool)
	if !ok {
		return nil
	}
	return Listener(func(ctx context.Context) (*pgx.Conn, error) {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		return c.Hijack(), nil
	})
}

// free returns sqldb.ErrOneConnection if the caller's transaction holds the only connection.
func (d database) free(ctx context.Context) error {
	pool, ok := d.b.(*pgxpool.Pool)
	if !ok {
		return nil
	}
	return sqldb.Free(ctx, pool, func() int { return int(pool.Stat().MaxConns()) })
}

// PoolUse implements sqldb.Pool.
func (d database) PoolUse() (sqldb.PoolUse, bool) {
	pool, ok := d.b.(*pgxpool.Pool)
	if !ok {
		return sqldb.PoolUse{}, false
	}
	s := pool.Stat()
	return sqldb.PoolUse{Waited: s.EmptyAcquireWaitTime(), Max: int(s.MaxConns()), Full: s.TotalConns() >= s.MaxConns()}, true
}

func (d database) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := d.free(ctx); err != nil {
		return nil, err
	}
	return d.conn.ExecContext(ctx, query, args...)
}

func (d database) QueryContext(ctx context.Context, query string, args ...any) (sqldb.Rows, error) {
	if err := d.free(ctx); err != nil {
		return nil, err
	}
	return d.conn.QueryContext(ctx, query, args...)
}

func (d database) QueryRowContext(ctx context.Context, query string, args ...any) sqldb.Row {
	return sqldb.OneRow(d.QueryContext(ctx, query, args...))
}

func (database) Dialect() (sqldb.Dialect, bool) { return sqldb.PostgreSQL, true }

func (d database) Session(ctx context.Context) (sqldb.Session, error) {
	p, ok := d.b.(*pgxpool.Pool)
	if !ok {
		return session{d.conn, func() {}}, nil
	}
	if err := d.free(ctx); err != nil {
		return nil, err
	}
	c, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return session{conn{c}, c.Release}, nil
}

type session struct {
	conn

	release func()
}

func (s session) Close() error {
	s.release()
	return nil
}

// isolations maps the isolation levels of database/sql to the levels of PostgreSQL.
var isolations = map[sql.IsolationLevel]pgx.TxIsoLevel{
	sql.LevelDefault:         "",
	sql.LevelReadUncommitted: pgx.ReadUncommitted,
	sql.LevelReadCommitted:   pgx.ReadCommitted,
	sql.LevelRepeatableRead:  pgx.RepeatableRead,
	sql.LevelSnapshot:        pgx.RepeatableRead,
	sql.LevelSerializable:    pgx.Serializable,
}

func (d database) Begin(ctx context.Context, opts *sql.TxOptions) (sqldb.Tx, error) {
	if err := d.free(ctx); err != nil {
		return nil, err
	}
	t := &transaction{b: d.b, hold: sqldb.NewHold(d.b)}
	if opts == nil {
		return t, nil
	}
	level, ok := isolations[opts.Isolation]
	if !ok {
		return nil, fmt.Errorf("isolation level %v: PostgreSQL supports read committed, repeatable read and serializable", opts.Isolation)
	}
	t.opts.IsoLevel = level
	if opts.ReadOnly {
		t.opts.AccessMode = pgx.ReadOnly
	}
	return t, nil
}

// transaction implements sqldb.Tx. It begins with its first statement, in the same round trip.
type transaction struct {
	b    beginner
	opts pgx.TxOptions
	tx   pgx.Tx // nil before the first statement
	hold *sqldb.Hold
}

// Held returns the record of the connection that the transaction holds.
func (t *transaction) Held() *sqldb.Hold { return t.hold }

// first sends BEGIN and the first statement. The caller closes the results.
func (t *transaction) first(ctx context.Context, query string, args []any) (pgx.BatchResults, error) {
	var b pgx.Batch
	b.BeginTx(t.opts)
	b.Queue(query, args...)
	results := t.b.SendBatch(ctx, &b)
	t.tx = results.Tx()
	if _, err := results.Exec(); err != nil {
		_ = results.Close() // ignore its error, which is the same
		return nil, sqldb.ExplainServer(err)
	}
	return results, nil
}

func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.tx != nil {
		return conn{t.tx}.ExecContext(ctx, query, args...)
	}
	results, err := t.first(ctx, query, args)
	if err != nil {
		return nil, err
	}
	tag, err := results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return affected(tag.RowsAffected()), sqldb.ExplainServer(err)
}

func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (sqldb.Rows, error) {
	if t.tx != nil {
		return conn{t.tx}.QueryContext(ctx, query, args...)
	}
	results, err := t.first(ctx, query, args)
	if err != nil {
		return nil, err
	}
	r, err := results.Query()
	if err != nil {
		_ = results.Close() // ignore its error, which is the same
		return nil, sqldb.ExplainServer(err)
	}
	return rows{r, results.Close}, nil
}

func (t *transaction) QueryRowContext(ctx context.Context, query string, args ...any) sqldb.Row {
	return sqldb.OneRow(t.QueryContext(ctx, query, args...))
}

// Own returns the pgx.Tx for the application's function. It begins the transaction if there was no statement before.
func (t *transaction) Own(ctx context.Context) (any, error) {
	var err error
	if t.tx == nil {
		t.tx, err = t.b.BeginTx(ctx, t.opts)
	}
	return t.tx, err
}

func (t *transaction) Commit(ctx context.Context) error {
	defer t.hold.End()
	if t.tx == nil {
		return nil
	}
	err := t.tx.Commit(ctx)
	switch {
	case errors.Is(err, pgx.ErrTxClosed), ctx.Err() != nil && pgconn.SafeToRetry(err):
		return sql.ErrTxDone
	case pgconn.SafeToRetry(err): // the commit was not sent, and the connection is closed
		return fmt.Errorf("%w: %w", sqldb.ErrRolledBack, err)
	}
	return sqldb.ExplainServer(err)
}

// rollbackTimeout limits a rollback. A connection that does not answer is closed, which also rolls back.
const rollbackTimeout = 5 * time.Second

func (t *transaction) Rollback(ctx context.Context) error {
	defer t.hold.End()
	if t.tx == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return t.tx.Rollback(ctx)
}
