//go:build !race

package simulate

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// The Makefile gives each tier different seeds.
func TestMain(m *testing.M) {
	os.Exit(tier.Run(m, tier.Plan{Test: []string{"TestSeeds", "TestPatches"}, Nightly: []string{"TestDefects"}}, nil))
}
