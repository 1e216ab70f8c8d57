// Package suite contains helpers for the tests on real servers: clients, virtual hosts, commands and waiting.
package suite

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// Main runs the tests of a package, stops the brokers and database servers that they share, and returns the exit code.
// The plan says which tier each test belongs to.
func Main(m *testing.M, plan tier.Plan) int {
	code := tier.Run(m, plan, broker.Newest)
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing brokers:", err)
		code = max(code, 1)
	}
	return code
}
