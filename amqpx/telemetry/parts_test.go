package telemetry

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// Every part of the relay that can fail has a series of rabbitdelay.relay.failing.
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
		t.Fatal("no parts were found in package schedule")
	}
	for _, part := range parts {
		if !slices.Contains(relayParts, part) {
			t.Errorf("the part %q of the relay has no metric", part)
		}
	}
}
