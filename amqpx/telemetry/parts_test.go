package telemetry

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The metric rabbitdelay.relay.failing has a series for each part of the relay that can fail.
func TestRelayParts(t *testing.T) {
	files, err := filepath.Glob("../schedule/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\breports\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
			parts = append(parts, m[1])
		}
	}
	if len(parts) == 0 {
		t.Fatal("found 0 calls of reports in package schedule, want at least 1")
	}
	for _, part := range parts {
		if !slices.Contains(relayParts, part) {
			t.Errorf("relayParts = %q, want the part %q among them", relayParts, part)
		}
	}
}
