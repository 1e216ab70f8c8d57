package source

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// TestMain runs the tests in the root of the module. It uses the absolute path, because with a relative path, go test
// would not notice changed files below it and would repeat a cached result.
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
