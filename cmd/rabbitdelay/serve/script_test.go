//go:build !race

package serve_test

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// Each command of a script is a process, which the race detector would make slow to start.
func TestScripts(t *testing.T) { clitest.Scripts(t) }
