//go:build !race

package simulate

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// The Makefile runs different seeds in each tier.
func TestMain(m *testing.M) {
	os.Exit(tier.Run(m, tier.Plan{Test: []string{"TestSeeds", "TestPatches"}, Nightly: []string{"TestDefects"}}, nil))
}
