package broker

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// shared are the brokers of this process, one for each set of options.
var shared servers.Shared[string, *Broker]

// Shared returns a broker that all tests of the process with the same options
// share. The first call starts it. CloseShared, called by TestMain, ends it.
// The test fails when there is no broker; it is skipped when
// RABBITDELAY_SKIP_INTEGRATION is 1.
func Shared(t servers.TB, o Options) *Broker {
	t.Helper()
	key := fmt.Sprintf("%q %q %q %t %t %q %q", o.URL, o.Version, o.Source, o.Management, o.Plugin, o.Config, o.Advanced)
	b, err := shared.Use(t, key, func() (*Broker, error) {
		o.Log = func(line string) { t.Logf("%s", line) }
		return Start(context.Background(), o)
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

// CloseShared ends the brokers that Shared started.
func CloseShared() error { return shared.Close() }
