package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
)

// ErrNoTable is wrapped by the error of a statement whose table does not exist.
var ErrNoTable = errors.New("the table does not exist; run the migrations first (Migrate, or rabbitdelay migrate)")

// ErrDenied is wrapped by the error of a statement that the database user is not allowed to run.
var ErrDenied = errors.New("the database user lacks a permission; docs/permissions.md lists the permissions that each component needs")

// ErrPooler is wrapped by the error of a statement that failed because the connection to PostgreSQL does not have the
// prepared statements that the driver has created.
var ErrPooler = errors.New("the connection does not have this program's prepared statements: a pooler in transaction mode, such as PgBouncer, is between this program and PostgreSQL; " +
	"add default_query_exec_mode=exec to the database URL. Such a pooler does not deliver notifications (LISTEN) either, so a relay is not woken when another process writes a task, " +
	"and finds the task up to one poll interval later (--poll, Config.PollInterval; 1s by default); see docs/databases.md")

// ErrReadOnly is wrapped by the error of a statement that a read-only database refuses.
var ErrReadOnly = errors.New("the database is read-only: it is a replica, or a setting is on: default_transaction_read_only (PostgreSQL) or read_only (MySQL, MariaDB); " +
	"use the primary's address (if a PostgreSQL URL lists several hosts, add target_session_attrs=read-write)")

// ExplainServer wraps the error of any statement, even one of the application, with ErrPooler or ErrReadOnly if that is
// the cause. Every connection of this package and of pgxtx calls it, so callers need not.
func ExplainServer(err error) error {
	var reason error
	switch sqlState(err) {
	case "42P05", "26000": // duplicate_prepared_statement, invalid_sql_statement_name
		reason = ErrPooler
	case "25006": // read_only_sql_transaction
		reason = ErrReadOnly
	}
	if mysqlReadOnly(err) {
		reason = ErrReadOnly
	}
	if reason == nil || errors.Is(err, reason) {
		return err
	}
	return fmt.Errorf("%w: %w", reason, err)
}

// Explain wraps the error of a statement with ErrNoTable if its table does not exist, and with ErrDenied if the
// database user is not allowed to run it.
func Explain(err error) error {
	for _, known := range []error{ErrNoTable, ErrDenied} {
		if errors.Is(err, known) {
			return err
		}
	}
	switch {
	case err == nil:
		return nil
	case missingTable(err):
		return fmt.Errorf("%w: %w", ErrNoTable, err)
	case sqliteCode(err)&0xff == 8: // SQLITE_READONLY
		return fmt.Errorf("%w: %w; SQLite must be able to write to the file and, for its journal, to its directory", ErrDenied, err)
	case denied(err):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

func denied(err error) bool {
	if sqlState(err) == "42501" { // insufficient_privilege
		return true
	}
	switch mysqlNumber(err) {
	case 1044, 1142, 1143, 1227: // for a database, a table, a column, an operation
		return true
	}
	switch sqliteCode(err) & 0xff {
	case 3, 23: // SQLITE_PERM, SQLITE_AUTH
		return true
	}
	return false
}

// NoTransaction reports whether a savepoint statement failed because there is no transaction.
func NoTransaction(err error) bool {
	return sqlState(err) == "25P01" || mysqlNumber(err) == 1305
}

// Transient reports whether the database rolled back the transaction, or refused to start it, only because of another
// transaction. The transaction can then be run again from the start. Examples are deadlocks, serialization failures,
// lock timeouts and a busy SQLite file.
func Transient(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "55P03": // serialization_failure, deadlock_detected, lock_not_available
		return true
	}
	switch mysqlNumber(err) {
	case 1213, 1205, 1020: // deadlock, lock wait timeout, MariaDB's "record has changed since last read"
		return true
	}
	switch sqliteCode(err) & 0xff {
	case 5, 6: // SQLITE_BUSY, SQLITE_LOCKED
		return true
	}
	return false
}

// Away reports whether the error means that the database is not available: it cannot be reached, is starting or
// stopping, has no free connection, or took too long.
func Away(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, known := range []error{driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"), state == "53300": // connection exceptions, shutdowns, too_many_connections
		return true
	}
	switch mysqlNumber(err) {
	case 1040, 1053, 1077, 1927: // too many connections, two codes for a shutdown, killed
		return true
	}
	switch sqliteCode(err) & 0xff {
	case 5, 10, 14: // SQLITE_BUSY, SQLITE_IOERR, SQLITE_CANTOPEN
		return true
	}
	return slices.ContainsFunc(chain(err), func(e error) bool { return e.Error() == "invalid connection" }) // MySQL
}

// Unavailable reports whether the error means that the database cannot currently serve any caller: it is Away, it is
// read-only, as a former primary is after a failover, or it rejects this program's login. It returns false for an error
// that wraps ErrCommit, because the commit may have succeeded.
func Unavailable(err error) bool {
	if err == nil || errors.Is(err, ErrCommit) {
		return false
	}
	if Away(err) || errors.Is(err, ErrReadOnly) {
		return true
	}
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "28"), state == "3D000", state == "25006": // authorization, no such database, read-only
		return true
	}
	switch mysqlNumber(err) {
	case 1045, 1049, 1129, 1130: // access denied, no such database, host blocked, host not allowed
		return true
	}
	return mysqlReadOnly(err)
}

// mysqlReadOnly reports whether MySQL or MariaDB refuses to write because of the server's option --read-only, its
// read-only mode, or a read-only transaction.
func mysqlReadOnly(err error) bool {
	switch mysqlNumber(err) {
	case 1290, 1836: // check the message too, because 1290 is also the number for other options
		return strings.Contains(err.Error(), "read-only") || strings.Contains(err.Error(), "read only")
	case 1792:
		return true
	}
	return false
}

// Refused reports whether the database rejects the values of a statement because of a constraint, a type or a trigger.
// The same statement will fail again until one of these, or the values, change.
func Refused(err error) bool {
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "22"), strings.HasPrefix(state, "23"), state == "P0001": // data exceptions, integrity constraints, RAISE
		return true
	}
	switch mysqlNumber(err) {
	case 1048, 1264, 1292, 1366, 1406, 1452, 1644, 3819, 4025: // NULL, out of range, wrong type, too long, foreign keys, SIGNAL, CHECK in MySQL and MariaDB
		return true
	}
	switch sqliteCode(err) & 0xff {
	case 18, 19, 20: // SQLITE_TOOBIG, _CONSTRAINT, _MISMATCH
		return true
	}
	return false
}

// Duplicate reports whether the error is a unique key violation.
func Duplicate(err error) bool {
	if sqlState(err) == "23505" || mysqlNumber(err) == 1062 {
		return true
	}
	c := sqliteCode(err)
	return c == 1555 || c == 2067 // SQLITE_CONSTRAINT_PRIMARYKEY, _UNIQUE
}

func missingTable(err error) bool {
	return sqlState(err) == "42P01" || mysqlNumber(err) == 1146 ||
		strings.Contains(err.Error(), "no such table: rabbitdelay_")
}

// sqlState returns the SQLSTATE of an error from a PostgreSQL driver. These drivers return it from a method.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// mysqlNumber parses the error number from an error message such as "Error 1213 (40001): …". The driver provides the
// number only in a field, which cannot be accessed without importing the driver.
func mysqlNumber(err error) int {
	for _, e := range chain(err) {
		rest, ok := strings.CutPrefix(e.Error(), "Error ")
		if !ok {
			continue
		}
		digits := rest
		if i := strings.IndexAny(rest, " :"); i > 0 {
			digits = rest[:i]
		}
		if n, err := strconv.Atoi(digits); err == nil && n >= 1000 && n < 10000 {
			return n
		}
	}
	return 0
}

// sqliteCode returns the extended result code of modernc.org/sqlite. For other SQLite drivers it derives the primary
// code from the SQLite library's error text.
func sqliteCode(err error) int {
	for _, e := range chain(err) {
		text := e.Error()
		if c, ok := e.(interface{ Code() int }); ok && (strings.Contains(text, "SQLITE") || strings.Contains(text, "("+strconv.Itoa(c.Code())+")")) {
			return c.Code()
		}
		switch text {
		case "database is locked":
			return 5
		case "database table is locked":
			return 6
		}
	}
	return 0
}

// chain lists err and all errors that it wraps.
func chain(err error) []error {
	if err == nil {
		return nil
	}
	list := []error{err}
	switch e := err.(type) { //nolint:errorlint // this function walks the chain itself
	case interface{ Unwrap() error }:
		list = append(list, chain(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			list = append(list, chain(inner)...)
		}
	}
	return list
}
