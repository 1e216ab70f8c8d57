package postgres

import (
	"context"
	"database/sql/driver"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector connects to a server directly or through a pooler. The first connection finds out which.
//
// By default pgx prepares each statement once on a connection and executes it by its name. A pooler in transaction mode
// passes each transaction to any of its own connections, and most of those do not have the prepared statement. So
// through a pooler pgx only caches the types of a statement (pgx.QueryExecModeCacheDescribe), and the server plans the
// statement at each execution.
type connector struct {
	cfg    *pgx.ConnConfig
	chosen atomic.Pointer[driver.Connector] // nil until the first connection
}

// Driver returns pgx's driver, by which package schedule recognises PostgreSQL.
func (c *connector) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if chosen := c.chosen.Load(); chosen != nil {
		return (*chosen).Connect(ctx)
	}
	direct := stdlib.GetConnector(*c.cfg)
	conn, err := direct.Connect(ctx)
	if err != nil {
		return nil, err
	}
	pooled, known := pooled(ctx, conn)
	switch {
	case !known: // use the connection: the caller's first statement returns the same error, and the next connection tests again
		return conn, nil
	case !pooled:
		c.chosen.Store(&direct)
		return conn, nil
	}
	cfg := c.cfg.Copy()
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	through := stdlib.GetConnector(*cfg)
	c.chosen.Store(&through)
	_ = conn.Close() // ignore the error: no transaction has begun on the connection
	return through.Connect(ctx)
}

// pooled reports whether a pooler or proxy is between the client and the server. In that case the server process that
// answers differs from the one that was announced when the client connected. pooled uses the simple protocol, which
// needs no prepared statement.
func pooled(ctx context.Context, conn driver.Conn) (pooled, known bool) {
	own, ok := conn.(*stdlib.Conn)
	if !ok {
		return false, false
	}
	c := own.Conn().PgConn()
	results, err := c.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return false, false
	}
	return string(results[0].Rows[0][0]) != strconv.FormatUint(uint64(c.PID()), 10), true
}
