package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A refusal advises what the command can do: retire has no --force.
func TestRefusalsAdvise(t *testing.T) {
	b := newByHand(t)
	file := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(file, []byte("delay: {bucket: {radices: [2]}, previous: [{radices: [2], resolution: 1h}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	earlier := filepath.Join(t.TempDir(), "earlier.yaml")
	if err := os.WriteFile(earlier, []byte("delay: {bucket: {radices: [2], resolution: 1h}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"apply", "-f", earlier}, {"send", "--queue", "q", "--delay", "1h", "-f", earlier}} {
		if code, _, stderr := b.run(t, args...); code != 0 {
			t.Fatal(stderr)
		}
	}
	for command, forces := range map[string]bool{"retire --yes": false, "retire --dry-run": false, "destroy --yes": true, "destroy --dry-run": true} {
		code, _, stderr := b.run(t, append(strings.Fields(command), "-f", file)...)
		if code != 1 || !strings.Contains(stderr, "1 message in 1 queue") || strings.Contains(stderr, "force") != forces {
			t.Errorf("%s: exit %d, %s", command, code, stderr)
		}
	}
}
