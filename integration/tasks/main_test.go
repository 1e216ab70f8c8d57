package tasks_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// TestMain is also the main function of a process that a test kills.
func TestMain(m *testing.M) {
	if given := os.Getenv(leaseEnv); given != "" {
		fmt.Fprintln(os.Stderr, workUntilKilled(given)) // it does not return before it is killed
		os.Exit(1)
	}
	os.Exit(suite.Main(m))
}
