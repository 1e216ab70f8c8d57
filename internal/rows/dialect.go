package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

func (c Conn) postgres() bool { return c.dialect == sqldb.PostgreSQL }
func (c Conn) mysql() bool    { return c.dialect == sqldb.MySQL }
func (c Conn) sqlite() bool   { return c.dialect == sqldb.SQLite }

func (c Conn) readCommitted() *sql.TxOptions {
	if c.sqlite() {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// FreshReads returns the options of a transaction that first reads rows and then locks them, and that must see what
// other transactions have committed in between. Only MySQL needs an option. By default, each statement of PostgreSQL
// sees what was committed before it, and with a stricter isolation level PostgreSQL refuses to lock a row that has
// changed since the transaction's snapshot.
func (c Conn) FreshReads() *sql.TxOptions {
	if c.mysql() {
		return c.readCommitted()
	}
	return nil
}

// Lock is the locking clause of a SELECT.
type Lock string

// The locks. SQLite needs none of them, because it has only one writer.
const (
	Unlocked   Lock = ""
	Exclusive  Lock = " FOR UPDATE"
	SkipLocked Lock = " FOR UPDATE SKIP LOCKED" // leaves out rows that other transactions have locked
	// Current reads the latest committed state, as statements that write rows do. Without a lock, MySQL's REPEATABLE
	// READ shows rows as they were at the transaction's first read.
	Current Lock = " LOCK IN SHARE MODE"
	// Working marks a row on which a handler works, so that SkipLocked leaves it out. It does not prevent other
	// transactions from changing the row, and several handlers can mark the same row. Only PostgreSQL has such a lock.
	Working Lock = " FOR KEY SHARE"
	// Shared prevents other transactions from changing the row until the transaction ends.
	Shared Lock = " FOR SHARE"
)

func (c Conn) lock(l Lock) string {
	switch {
	case c.sqlite(), l == Current && !c.mysql(), l == Working && !c.postgres():
		return ""
	case l == Shared && c.mysql():
		return string(Current) // MariaDB has no FOR SHARE
	}
	return string(l)
}

// WriteFirst must be called at the beginning of a transaction that reads before it writes. On SQLite it executes a
// writing statement to acquire the write lock, because a read lock cannot always be upgraded later.
func (c Conn) WriteFirst(ctx context.Context) error {
	if !c.sqlite() {
		return nil
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET claimed_until = 0 WHERE id = ''")
	return err
}

// insertMissing returns an INSERT that does nothing if the row exists.
func (c Conn) insertMissing(into string) string { return c.dialect.InsertMissing(into) }

// tasksBy returns the table with a hint for the index that MySQL or SQLite must use. An empty name leaves the choice to
// the planner. The hints are needed because MySQL's statistics do not show how a status affects the order of a list,
// and SQLite has no statistics until ANALYZE is run, so both would read all pending rows.
func (c Conn) tasksBy(mysql, sqlite string) string {
	switch {
	case c.mysql() && mysql != "":
		return "rabbitdelay_tasks FORCE INDEX (rabbitdelay_tasks_" + mysql + ")"
	case c.sqlite() && sqlite != "":
		return "rabbitdelay_tasks INDEXED BY rabbitdelay_tasks_" + sqlite
	}
	return "rabbitdelay_tasks"
}

// clockQueries read the database's clock in milliseconds since the Unix epoch.
var clockQueries = map[sqldb.Dialect]string{
	sqldb.PostgreSQL: "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
	sqldb.MySQL:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
}

// Clock reads the database's clock, or the clock that replaces it.
func (c Conn) Clock(ctx context.Context) (time.Time, error) {
	if c.clock != nil {
		return c.clock(), nil
	}
	ms, err := c.number(ctx, "SELECT "+clockQueries[c.dialect])
	if err != nil {
		err = fmt.Errorf("reading the database's clock: %w", err)
		if c.failed != nil {
			*c.failed = err
		}
		return time.Time{}, err
	}
	return time.UnixMilli(ms), nil
}

// unexpired returns the condition that a row has not expired by the database's clock, or at now if another clock
// replaces the database's. For a row with a due time of 0, which means immediately, expires_after counts from when it
// was written. The condition avoids additions, which could overflow.
func (c Conn) unexpired(now int64) string {
	clock := clockQueries[c.dialect]
	if c.clock != nil {
		clock = strconv.FormatInt(now, 10)
	}
	return "(expires_after IS NULL OR expires_after > " + clock + " - CASE WHEN due_at = 0 THEN created_at ELSE due_at END)"
}

// beyond returns the condition for the rows after a position in an order. An index can find the position even if many
// tasks are due at the same time.
func (c Conn) beyond(s Sort, p Place) (condition string, args []any) {
	at := Stored(p.DeliverAt)
	than := ">"
	if s.Last {
		than = "<"
	}
	if c.mysql() {
		return fmt.Sprintf("%s %s= ? AND (%s %s ? OR (%s = ? AND id %s ?))", s.column(), than, s.column(), than, s.column(), than), []any{at, at, at, p.ID}
	}
	return fmt.Sprintf("(%s, id) %s (?, ?)", s.column(), than), []any{at, p.ID}
}

// anyOf returns the condition on the ids that follows "WHERE id " in a statement. On PostgreSQL it has one JSON
// parameter, so that a frequently used statement is planned once for any number of ids.
func (c Conn) anyOf(ids []any) (condition string, args []any, err error) {
	if !c.postgres() {
		return "IN (" + marks(len(ids)) + ")", ids, nil
	}
	list, err := json.Marshal(ids)
	return "= ANY (ARRAY (SELECT json_array_elements_text(" + sqldb.JSON + ")))", []any{string(list)}, err
}

// bodySize returns the SQL expression for the length of a body in bytes.
func (c Conn) bodySize() string {
	if c.sqlite() {
		return "length(CAST(body AS BLOB))"
	}
	return "octet_length(body)"
}

// marks returns n placeholders.
func marks(n int) string { return "?" + strings.Repeat(", ?", n-1) }

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}
