package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// EnvSkip makes tests that need a broker or a database skip when it is 1.
// Otherwise they fail when there is none.
const EnvSkip = "RABBITDELAY_SKIP_INTEGRATION"

// TB is what Shared needs of a *testing.T. It is not testing.TB, so that a
// program which uses this package does not bring the package testing along.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// shared are the brokers of this process, one for each set of options.
var shared struct {
	sync.Mutex
	brokers map[string]*sharedBroker
}

type sharedBroker struct {
	once   sync.Once
	broker *Broker
	err    error
}

// Shared returns a broker that all tests of the process with the same options
// share. The first call starts it. CloseShared, called by TestMain, ends it.
// The test fails when there is no broker; it is skipped when
// RABBITDELAY_SKIP_INTEGRATION is 1.
func Shared(t TB, o Options) *Broker {
	t.Helper()
	if os.Getenv(EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", EnvSkip)
		return nil
	}
	key := fmt.Sprintf("%q %q %q %t %t %q %q", o.URL, o.Version, o.Source, o.Management, o.Plugin, o.Config, o.Advanced)
	shared.Lock()
	if shared.brokers == nil {
		shared.brokers = map[string]*sharedBroker{}
	}
	s := shared.brokers[key]
	if s == nil {
		s = &sharedBroker{}
		shared.brokers[key] = s
	}
	shared.Unlock()

	s.once.Do(func() {
		var lines []string
		o.Log = func(line string) { lines = append(lines, line) }
		s.broker, s.err = Start(context.Background(), o)
		for _, line := range lines {
			t.Logf("%s", line)
		}
	})
	if s.err != nil {
		t.Fatalf("%v", s.err)
		return nil
	}
	return s.broker
}

// CloseShared ends the brokers that Shared started.
func CloseShared() error {
	shared.Lock()
	defer shared.Unlock()
	var errs []error
	for key, s := range shared.brokers {
		if s.broker != nil {
			errs = append(errs, s.broker.Close())
		}
		delete(shared.brokers, key)
	}
	return errors.Join(errs...)
}
