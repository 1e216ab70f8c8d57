package database

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// shared holds the servers of this process.
var shared servers.Shared[Kind, *Server]

// Shared returns a server that all tests of the process share. The first call starts it. CloseShared, which TestMain
// must call, stops it. The test fails if the server is not available. It is skipped if RABBITDELAY_SKIP_INTEGRATION is
// 1, or if there is no MySQL, because not every machine can have it.
func Shared(t servers.TB, kind Kind) *Server {
	t.Helper()
	s, err := shared.Use(t, kind, func() (*Server, error) { return Start(context.Background(), kind, Options{}) })
	if kind == MySQL && errors.Is(err, ErrNotInstalled) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatalf("starting the database: %v", err)
	}
	return s
}

// CloseShared stops the servers that Shared started.
func CloseShared() error { return shared.Close() }
