//go:build !race

package simulate

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What `make simulate-defects` sets.
var plant = flag.String("plant", "", "a pattern of the defects to plant; empty for none")

// defectsDir holds a patch for each defect. To add one, make the mistake, write it to a file there by
// `git diff >NAME.patch`, and undo it.
const defectsDir = "testdata/defects"

// TestDefects plants each defect in a copy of the source and logs within how many seeds the simulation finds it.
// Patches are applied like those of any other branch, so they survive changes around them. One that no longer applies
// is reported here and fails no other test.
func TestDefects(t *testing.T) {
	if *plant == "" {
		t.Skip("make simulate-defects")
	}
	chosen := regexp.MustCompile(*plant)
	patches, err := filepath.Glob(filepath.Join(defectsDir, "*.patch"))
	if err != nil || len(patches) == 0 {
		t.Fatalf("%s: no patches: %v", defectsDir, err)
	}
	for _, patch := range patches {
		name := strings.TrimSuffix(filepath.Base(patch), ".patch")
		if !chosen.MatchString(name) {
			continue
		}
		after, err := seedsUntilFound(t, patch)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case after == 0:
			t.Errorf("%-45s not found in %d seeds", name, *seeds)
		default:
			t.Logf("%-45s found after %d seeds", name, after)
		}
	}
}

// changed matches the name of a file that a patch changes.
var changed = regexp.MustCompile(`(?m)^--- a/(\S+)`)

// planted applies a patch to copies of the files that it changes and returns the copies by the originals.
func planted(t *testing.T, patch string) (map[string]string, error) {
	t.Helper()
	patch, err := filepath.Abs(patch)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(patch)
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	copies, replaced := t.TempDir(), map[string]string{}
	for _, found := range changed.FindAllSubmatch(text, -1) {
		original, place := filepath.Join(root, string(found[1])), filepath.Join(copies, string(found[1]))
		source, err := os.ReadFile(original)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(place, source, 0o600); err != nil {
			return nil, err
		}
		replaced[original] = place
	}
	apply := exec.CommandContext(t.Context(), "git", "apply", "-C1", patch)
	apply.Dir = copies
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(copies)) // the copies belong to no repository
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the patch no longer applies; make the mistake in the present code and write it by git diff: %w\n%s", err, out)
	}
	return replaced, nil
}

// replay is what a failing seed prints.
var replay = regexp.MustCompile(`replay: make simulate FROM=(\d+)`)

// seedsUntilFound builds the simulation with the defect of a patch and runs it. It returns 0 if no seed finds the defect.
func seedsUntilFound(t *testing.T, patch string) (n uint64, err error) {
	t.Helper()
	files, err := planted(t, patch)
	if err != nil {
		return 0, err
	}
	replaced, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return 0, err
	}
	dir := t.TempDir()
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "simulate.test")
	if err := os.WriteFile(overlay, replaced, 0o600); err != nil {
		return 0, err
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "-test.run=^TestSeeds$", "-test.timeout=30m", "-until-found",
		fmt.Sprintf("-from=%d", *from), fmt.Sprintf("-seeds=%d", *seeds)).CombinedOutput()
	for _, found := range replay.FindAllStringSubmatch(string(out), -1) {
		if seed, _ := strconv.ParseUint(found[1], 10, 64); n == 0 || seed-*from+1 < n {
			n = seed - *from + 1
		}
	}
	if n == 0 && err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return n, nil
}
