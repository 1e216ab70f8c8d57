package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
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

// FreshReads are the options of a transaction that locks after it has read, and has to see
// what others committed meanwhile. PostgreSQL refuses the lock where it would not.
func (c Conn) FreshReads() *sql.TxOptions {
	if c.mysql() {
		return c.readCommitted()
	}
	return nil
}

// Lock is how a SELECT locks what it reads.
type Lock string

// On SQLite, which has one writer, none of them is needed.
const (
	Unlocked   Lock = ""
	Exclusive  Lock = " FOR UPDATE"
	SkipLocked Lock = " FOR UPDATE SKIP LOCKED" // passes over what others have locked
	// Current reads what the statement before it met: MySQL's repeatable read shows
	// rows as they were at the transaction's first read unless they are locked.
	Current Lock = " LOCK IN SHARE MODE"
	// Working marks a row on which a handler works, so that SkipLocked passes it over. It keeps
	// nobody from changing the row, and several handlers may have it. Only PostgreSQL has such
	// a lock.
	Working Lock = " FOR KEY SHARE"
	// Shared keeps others from changing the row until the transaction ends.
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

// WriteFirst begins a transaction that reads before it writes: on SQLite, whose read lock
// could fail to become a write lock, with a statement that writes.
func (c Conn) WriteFirst(ctx context.Context) error {
	if !c.sqlite() {
		return nil
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET claimed_until = 0 WHERE id = ''")
	return err
}

// insertMissing returns a statement that leaves a row that exists as it is.
func (c Conn) insertMissing(into string) string { return c.dialect.InsertMissing(into) }

// tasksBy returns the table with the index by which MySQL or SQLite has to go; "" leaves
// it to the planner. MySQL's statistics do not know what a status means for the order of
// a list, and SQLite has no statistics until somebody runs ANALYZE: both would read
// everything that is pending.
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

// ownClock reports whether this process's clock is the one to go by: SQLite is part of
// the process, and nobody outside of a bubble knows its time.
func (c Conn) ownClock() bool { return c.sqlite() || faketime.Inside() }

// Clock reads the database's clock. local is this process's.
func (c Conn) Clock(ctx context.Context, local func() time.Time) (time.Time, error) {
	if c.ownClock() {
		return local(), nil
	}
	ms, err := c.number(ctx, "SELECT "+clockQueries[c.dialect])
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return time.UnixMilli(ms), nil
}

// unexpired is the condition of a row whose time is not over by the database's clock, or
// by now where that is this process's. The time of a row that is due at 0, which means at
// once, counts from when it was written. Nothing is added that could overflow.
func (c Conn) unexpired(now int64) string {
	clock := clockQueries[c.dialect]
	if c.ownClock() {
		clock = strconv.FormatInt(now, 10)
	}
	return "(expires_after IS NULL OR expires_after > " + clock + " - CASE WHEN due_at = 0 THEN created_at ELSE due_at END)"
}

// beyond is the condition of what comes after a place in an order, written so that an
// index leads there even when many tasks are due at one instant.
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

// anyOf completes "WHERE id " for a statement that is planned often: PostgreSQL plans
// one parameter of JSON once, however many ids it has.
func (c Conn) anyOf(ids []any) (condition string, args []any, err error) {
	if !c.postgres() {
		return "IN (" + marks(len(ids)) + ")", ids, nil
	}
	list, err := json.Marshal(ids)
	return "= ANY (ARRAY (SELECT json_array_elements_text(" + sqldb.JSON + ")))", []any{string(list)}, err
}

// bodySize is the length of a body in bytes.
func (c Conn) bodySize() string {
	if c.sqlite() {
		return "length(CAST(body AS BLOB))"
	}
	return "octet_length(body)"
}

// marks is n placeholders.
func marks(n int) string { return "?" + strings.Repeat(", ?", n-1) }

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}
