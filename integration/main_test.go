package integration_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// TestMain ends what the tests share: brokers and database servers. It is also the
// main function of the processes that tests kill.
func TestMain(m *testing.M) {
	if given := os.Getenv(leaseEnv); given != "" {
		fmt.Fprintln(os.Stderr, workUntilKilled(given)) // it does not return before it is killed
		os.Exit(1)
	}
	if args := os.Getenv(requeueEnv); args != "" {
		os.Exit(requeueMain(args))
	}
	if args := os.Getenv(cliEnv); args != "" {
		os.Exit(cliMain(args))
	}
	code := m.Run()
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing brokers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
