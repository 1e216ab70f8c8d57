package database

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// shared are the servers of this process.
var shared servers.Shared[Kind, *Server]

// Shared returns a server that all tests of the process share. The first call
// starts it. CloseShared, called by TestMain, ends it. The test fails when
// there is none; it is skipped when RABBITDELAY_SKIP_INTEGRATION is 1, and when
// there is no MySQL, which not every machine can have.
func Shared(t servers.TB, kind Kind) *Server {
	t.Helper()
	s, err := shared.Use(t, kind, func() (*Server, error) { return Start(context.Background(), kind, Options{}) })
	if kind == MySQL && errors.Is(err, ErrNotInstalled) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

// CloseShared ends the servers that Shared started.
func CloseShared() error { return shared.Close() }
