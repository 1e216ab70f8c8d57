package tasks_test

import (
	"database/sql"
	"encoding/json"
	"strings"
	"testing"

	"modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// reads runs a statement, rolls it back, and returns how much of the table and its indexes it read, in rows on MySQL
// and in pages on the other databases.
func (b businessDB) reads(t *testing.T, st statement) int64 {
	t.Helper()
	conn, err := b.Conn(t.Context())
	suite.MustSucceed(t, err)
	defer func() { _ = conn.Close() }()
	run := func(query string, args ...any) {
		t.Helper()
		rows, err := conn.QueryContext(t.Context(), query, args...)
		if err != nil {
			t.Fatalf("query %s: %v", query, err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
		}
		suite.MustSucceed(t, rows.Err())
	}
	run("BEGIN")
	defer run("ROLLBACK")
	switch b.dialect {
	case idempotency.PostgreSQL:
		// This run skips dead row versions and marks them in the index, so
		// that the measured run does not read them.
		run("SAVEPOINT before")
		run("EXPLAIN (ANALYZE) "+st.query, st.args...)
		run("ROLLBACK TO before")
		var plan string
		suite.MustSucceed(t, conn.QueryRowContext(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+st.query, st.args...).Scan(&plan))
		var plans []struct{ Plan planNode }
		suite.MustSucceed(t, json.Unmarshal([]byte(plan), &plans))
		_, scanned := plans[0].Plan.pages()
		return scanned
	case idempotency.MySQL:
		// With index condition pushdown, the engine would skip rows that the counters do not count.
		run("SET SESSION optimizer_switch = 'index_condition_pushdown=off'")
		defer run("SET SESSION optimizer_switch = 'index_condition_pushdown=on'")
		before := handlerReads(t, conn)
		idle := handlerReads(t, conn) - before // reading the counters increases them too
		run(st.query, st.args...)
		return handlerReads(t, conn) - before - 2*idle
	default:
		before := cachePages(t, conn)
		run(st.query, st.args...)
		return cachePages(t, conn) - before
	}
}

// planNode is a node of PostgreSQL's plan.
type planNode struct {
	Type  string     `json:"Node Type"`
	Hit   int64      `json:"Shared Hit Blocks"`
	Read  int64      `json:"Shared Read Blocks"`
	Plans []planNode `json:"Plans"`
}

// pages returns the pages of the node and all nodes below it, and how many of them were read to
// find rows rather than to change them.
func (n planNode) pages() (all, scanned int64) {
	all = n.Hit + n.Read
	below := int64(0)
	for _, p := range n.Plans {
		a, s := p.pages()
		below += a
		scanned += s
	}
	if strings.HasSuffix(n.Type, "Scan") {
		scanned += all - below
	}
	return all, scanned
}

func handlerReads(t *testing.T, conn *sql.Conn) (sum int64) {
	t.Helper()
	rows, err := conn.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
	suite.MustSucceed(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int64
		suite.MustSucceed(t, rows.Scan(&name, &n))
		sum += n
	}
	suite.MustSucceed(t, rows.Err())
	return sum
}

func cachePages(t *testing.T, conn *sql.Conn) (sum int64) {
	t.Helper()
	suite.MustSucceed(t, conn.Raw(func(c any) error {
		for _, op := range []sqlite.DBStatusOp{sqlite.DBStatusCacheHit, sqlite.DBStatusCacheMiss} {
			n, _, err := c.(sqlite.DBStatus).Status(op, false)
			if err != nil {
				return err
			}
			sum += int64(n)
		}
		return nil
	}))
	return sum
}
