package sqldb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

// stated is an error like those of a PostgreSQL driver: it has the given SQLSTATE.
type stated string

func (s stated) Error() string { return "the server says " + string(s) }

func (s stated) SQLState() string { return string(s) }

// Unavailable reports errors that affect every message, for which handlers wait. It does not report errors that
// concern one message only.
func TestUnavailable(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{fmt.Errorf("begin: %w", refused), true},
		{context.DeadlineExceeded, true},
		{stated("57P03"), true},                      // the server is starting
		{stated("53300"), true},                      // too many connections
		{stated("28P01"), true},                      // wrong password
		{stated("25006"), true},                      // read-only transaction
		{ExplainServer(stated("25006")), true},       // the same error after ExplainServer
		{errors.New("Error 1045 (28000): no"), true}, // MySQL rejects the login
		{errors.New("Error 1836 (HY000): Running in read-only mode"), true},
		{errors.New("Error 1290 (HY000): The MySQL server is running with the --read-only option"), true},
		{errors.New("Error 1290 (HY000): The MySQL server is running with the --secure-file-priv option"), false},
		{stated("23505"), false}, // a duplicate key
		{stated("22021"), false}, // a string that cannot be stored
		{stated("42P01"), false}, // a missing table
		{errors.New("the application's own error"), false},
		{fmt.Errorf("%w: %w", ErrCommit, refused), false}, // the transaction may have been committed
	} {
		if got := Unavailable(tc.err); got != tc.want {
			t.Errorf("Unavailable(%v) = %t, want %t", tc.err, got, tc.want)
		}
	}
}
