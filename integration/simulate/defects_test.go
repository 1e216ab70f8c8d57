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

// `make simulate-defects` sets this flag.
var plant = flag.String("plant", "", "pattern of the names of the defects to plant; empty for none")

// defectsDir contains a patch for each defect. To add a defect, make the mistake, write it to a file in this folder
// with `git diff >NAME.patch`, and undo it. If no seed can find the mistake because it is smaller than the model's
// tolerance, the first line of its patch must be "Test: PACKAGE NAME" with the test that finds it.
const defectsDir = "testdata/defects"

// defects returns the paths of all patches.
func defects(t *testing.T) []string {
	t.Helper()
	patches, err := filepath.Glob(filepath.Join(defectsDir, "*.patch"))
	if err != nil || len(patches) == 0 {
		t.Fatalf("got no patches in %s (error %v), want at least one", defectsDir, err)
	}
	return patches
}

// nameOf returns the name of the defect in a patch.
func nameOf(patch string) string { return strings.TrimSuffix(filepath.Base(patch), ".patch") }

// TestPatches reports patches that do not apply to the code. It builds and runs nothing, so it is part of every test
// run, and a change to the code of a defect fails here and not only in the nightly TestDefects.
func TestPatches(t *testing.T) {
	var rotten []string
	patches := defects(t)
	for _, patch := range patches {
		if _, err := planted(t, patch); err != nil {
			rotten = append(rotten, fmt.Sprintf("%s: %v", nameOf(patch), err))
		}
	}
	if len(rotten) > 0 {
		t.Errorf(`%d of %d planted defects do not apply to the code, want all to apply:

%s

For each of them, make the same mistake in the current code and write it with
  git diff >integration/simulate/%s/NAME.patch
Then undo the mistake, and check that the simulation finds it:
  make simulate-defects DEFECT=NAME
Delete the patch if the mistake is impossible in the current code.`, len(rotten), len(patches), strings.Join(rotten, "\n"), defectsDir)
	}
}

// TestDefects plants each defect in a copy of the source and logs after how many seeds the simulation finds it. Patches
// are applied with git, so they still apply after changes to the surrounding code. TestPatches reports those that do
// not.
func TestDefects(t *testing.T) {
	if *plant == "" {
		t.Skip("skipped: run make simulate-defects")
	}
	chosen := regexp.MustCompile(*plant)
	for _, patch := range defects(t) {
		name := nameOf(patch)
		if !chosen.MatchString(name) {
			continue
		}
		if pkg, test := finder(t, patch); test != "" {
			if err := foundBy(t, patch, pkg, test); err != nil {
				t.Errorf("defect %s: %v", name, err)
			} else {
				t.Logf("%-45s found by %s in %s", name, test, pkg)
			}
			continue
		}
		after, err := seedsUntilFound(t, patch)
		switch {
		case err != nil:
			t.Errorf("defect %s: %v", name, err)
		case after == 0:
			t.Errorf("defect %s was not found in %d seeds, want it found", name, *seeds)
		default:
			t.Logf("%-45s found after %d seeds", name, after)
		}
	}
}

// changed matches the names of the files that a patch changes.
var changed = regexp.MustCompile(`(?m)^--- a/(\S+)`)

// planted applies a patch to copies of the files that it changes, and returns a map from each original to its copy.
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
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(copies)) // the copies are not in a repository
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("git apply -C1: %w\n%s", err, out)
	}
	return replaced, nil
}

// finds matches the first line of a patch if it names the test that finds the defect.
var finds = regexp.MustCompile(`(?m)\ATest: (\S+) (\S+)$`)

// finder returns the package and the name of the test that finds a defect, or empty strings if the simulation finds it.
func finder(t *testing.T, patch string) (pkg, test string) {
	t.Helper()
	text, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	if found := finds.FindSubmatch(text); found != nil {
		return string(found[1]), string(found[2])
	}
	return "", ""
}

// foundBy runs a test with a patch's defect, and returns an error unless the test fails.
func foundBy(t *testing.T, patch, pkg, test string) error {
	t.Helper()
	overlay, err := overlaid(t, patch)
	if err != nil {
		return err
	}
	run := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-overlay", overlay, "-run", "^"+test+"$", pkg)
	run.Dir = filepath.Join("..", "..")
	out, err := run.CombinedOutput()
	switch {
	case err == nil:
		return fmt.Errorf("%s in %s passed with the defect, want it to fail:\n%s", test, pkg, out)
	case !strings.Contains(string(out), "--- FAIL: "+test):
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// overlaid writes the go command's overlay file for a patch's defect, and returns its path.
func overlaid(t *testing.T, patch string) (string, error) {
	t.Helper()
	files, err := planted(t, patch)
	if err != nil {
		return "", err
	}
	replaced, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	return overlay, os.WriteFile(overlay, replaced, 0o600)
}

// replay matches the line that a failing seed prints.
var replay = regexp.MustCompile(`replay: make simulate FROM=(\d+)`)

// seedsUntilFound builds the simulation with a patch's defect and runs it until a seed finds the defect. It returns the
// number of seeds, or 0 if no seed finds it.
func seedsUntilFound(t *testing.T, patch string) (n uint64, err error) {
	t.Helper()
	overlay, err := overlaid(t, patch)
	if err != nil {
		return 0, err
	}
	program := filepath.Join(t.TempDir(), "simulate.test")
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
