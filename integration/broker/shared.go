package broker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// shared holds the brokers of this process, one for each set of options.
var shared servers.Shared[string, *Broker]

// Shared returns a broker that all tests of the process with the same options share. The first call starts it.
// CloseShared, which TestMain must call, stops it. The test fails if there is no broker, and is skipped if
// RABBITDELAY_SKIP_INTEGRATION is 1.
//
// A broker without custom settings always has its management API, and a broker without a version is the newest one, so
// that a process starts only one broker of each version.
func Shared(t servers.TB, o Options) *Broker {
	t.Helper()
	if o.Config == "" && o.Advanced == "" {
		o.Management = true
	}
	if o.Version == "" {
		o.Version = Newest()
	}
	key := fmt.Sprintf("%q %q %q %t %t %q %q %v %t %q %d", o.URL, o.Version, o.Source, o.Management, o.Plugin, o.Config, o.Advanced, o.Clock, o.Durable, o.Data, o.Port)
	b, err := shared.Use(t, key, func() (*Broker, error) {
		o.Log = func(line string) { t.Logf("%s", line) }
		return Start(context.Background(), o)
	})
	if err != nil {
		t.Fatalf("starting the broker: %v", err)
	}
	return b
}

// Newest returns the newest available release line, or "" if Start should find it out. An image that
// RABBITDELAY_NEXT_IMAGE names does not count.
func Newest() string { return newest() }

var newest = sync.OnceValue(func() string {
	if os.Getenv(servers.EnvSkip) == "1" || os.Getenv(EnvURL) != "" {
		return ""
	}
	lines, err := Versions(context.Background())
	if err != nil {
		return ""
	}
	next := ""
	if _, tag, ok := strings.Cut(os.Getenv(EnvNextImage), ":"); ok {
		next = line(tag)
	}
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == next })
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
})

// CloseShared stops the brokers that Shared started.
func CloseShared() error { return shared.Close() }
