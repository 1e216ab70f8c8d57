//go:build !race

package messages_test

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// This test is excluded from builds with the race detector, because it starts a process for each command, and processes
// start slowly with the race detector.
func TestScripts(t *testing.T) { clitest.Scripts(t) }
