//go:build !race

package simulate

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// The Makefile gives each tier seeds of its own.
func TestMain(m *testing.M) {
	os.Exit(tier.Run(m, tier.Plan{Test: []string{"TestSeeds"}, Nightly: []string{"TestDefects"}}, nil))
}
