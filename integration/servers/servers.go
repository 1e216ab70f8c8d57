// Package servers manages servers that all tests of a process share.
package servers

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Patience is the timeout for everything that a test waits for. It does not express how fast something should happen,
// and is long so that tests do not fail on a busy machine.
const Patience = 6 * time.Minute

// EnvSkip makes tests that need a broker or a database skip if it is 1. Otherwise they fail if there is none.
const EnvSkip = "RABBITDELAY_SKIP_INTEGRATION"

// TB is the required subset of *testing.T. It replaces testing.TB, so that a program that links a launcher does not
// also link the package testing.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Shared holds the servers of one kind, one for each key. The zero value is empty.
type Shared[K comparable, S io.Closer] struct {
	mu  sync.Mutex
	all map[K]*server[S]
}

type server[S io.Closer] struct {
	once sync.Once
	it   S
	err  error
}

// Use returns the server for a key. The first call starts the server, and concurrent calls wait for it. Use does not
// retry a failed start. It skips the test if EnvSkip is 1.
func (s *Shared[K, S]) Use(t TB, key K, start func() (S, error)) (S, error) {
	t.Helper()
	if os.Getenv(EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", EnvSkip)
	}
	s.mu.Lock()
	if s.all == nil {
		s.all = map[K]*server[S]{}
	}
	one := s.all[key]
	if one == nil {
		one = &server[S]{}
		s.all[key] = one
	}
	s.mu.Unlock()
	one.once.Do(func() { one.it, one.err = start() })
	return one.it, one.err
}

// Close closes the servers that were started.
func (s *Shared[K, S]) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for key, one := range s.all {
		if one.err == nil {
			errs = append(errs, one.it.Close())
		}
		delete(s.all, key)
	}
	return errors.Join(errs...)
}
