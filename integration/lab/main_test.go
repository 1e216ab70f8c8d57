package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	// The settings of the machine that runs the tests must not affect the commands.
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "AMQP_URL" || strings.HasPrefix(name, "RABBITDELAY_") && !strings.HasPrefix(name, "RABBITDELAY_TEST_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(suite.Main(m, tiers))
}

// make test runs the tests in memory, and make test-servers runs the demo on real servers.
var tiers = tier.Plan{Test: []string{"TestDemoHeldOpen", "TestHelp", "TestDemoStories", "TestUsageErrors"}}
