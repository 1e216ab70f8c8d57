package source

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// TestMain runs the tests at the root of the module, by its absolute path: go test would not see that
// a file below a relative one has changed, and repeat an old result.
func TestMain(m *testing.M) {
	root, err := filepath.Abs("../..")
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(tier.Run(m, tier.Everything, nil))
}
