package database

import (
	"context"
	"errors"
	"os"
	"sync"
)

// EnvSkip makes tests that need a broker or a database skip when it is 1.
// Otherwise they fail when there is none.
const EnvSkip = "RABBITDELAY_SKIP_INTEGRATION"

// TB is what Shared needs of a *testing.T.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var shared struct {
	sync.Mutex
	servers map[Kind]*Server
}

// Shared returns a server that all tests of the process share. The first call
// starts it. CloseShared, called by TestMain, ends it. The test fails when
// there is none; it is skipped when RABBITDELAY_SKIP_INTEGRATION is 1.
func Shared(t TB, kind Kind) *Server {
	t.Helper()
	if os.Getenv(EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", EnvSkip)
		return nil
	}
	shared.Lock()
	defer shared.Unlock()
	if s := shared.servers[kind]; s != nil {
		return s
	}
	s, err := Start(context.Background(), kind, Options{})
	if err != nil {
		t.Fatalf("%v", err)
		return nil
	}
	if shared.servers == nil {
		shared.servers = map[Kind]*Server{}
	}
	shared.servers[kind] = s
	return s
}

// CloseShared ends the servers that Shared started.
func CloseShared() error {
	shared.Lock()
	defer shared.Unlock()
	var errs []error
	for kind, s := range shared.servers {
		errs = append(errs, s.Close())
		delete(shared.servers, kind)
	}
	return errors.Join(errs...)
}
