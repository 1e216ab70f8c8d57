// Package servers holds the servers that all tests of a process share.
package servers

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Patience bounds every wait of a test for something that must come. It says nothing
// about how fast it should come, so that a busy machine fails no test.
const Patience = 6 * time.Minute

// EnvSkip makes tests that need a broker or a database skip when it is 1.
// Otherwise they fail when there is none.
const EnvSkip = "RABBITDELAY_SKIP_INTEGRATION"

// TB is what is needed of a *testing.T. It is not testing.TB, so that a program
// that links a launcher does not bring the package testing along.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Shared are the servers of one kind, one for each key. The zero value has none.
type Shared[K comparable, S io.Closer] struct {
	mu  sync.Mutex
	all map[K]*server[S]
}

type server[S io.Closer] struct {
	once sync.Once
	it   S
	err  error
}

// Use returns the server of a key. The first call starts it; those that come
// meanwhile wait for it. What failed to start is not tried again. The test is skipped
// when EnvSkip is 1.
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

// Close ends the servers that were started.
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
