package orm

import (
	"os"
	"os/exec"
	"testing"
)

// TestEnt generates a client from testdata/ent/schema, as a program would, and runs the tests in testdata/ent with it.
func TestEnt(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: generating and compiling ent's client takes a minute")
	}
	t.Cleanup(func() { _ = os.RemoveAll("testdata/ent/gen") })
	for _, command := range [][]string{
		{"tool", "ent", "generate", "--feature", "sql/execquery", "--target", "testdata/ent/gen", "./testdata/ent/schema"},
		{"test", "-count=1", "./testdata/ent"},
	} {
		if out, err := exec.CommandContext(t.Context(), "go", command...).CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", command, err, out)
		}
	}
}
