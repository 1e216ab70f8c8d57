package operations_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// run runs a program in dir and returns its standard output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PLATFORMS=linux/"+runtime.GOARCH, "GOFLAGS=")
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

// clone returns a directory with a clone of the current commit.
func clone(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	run(t, "../../../..", "git", "-c", "safe.directory=*", "clone", "--quiet", ".", dir)
	return dir
}

// Release files have the same bytes wherever a commit is built. The binaries run, the package has the right version,
// and the bill of materials is complete. (`make release` builds the other platforms too.)
func TestRelease(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"git", "jq", "zip", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: %s is not installed", tool)
		}
	}
	arch := runtime.GOARCH
	first, again := clone(t), clone(t)
	run(t, first, ".ci/release/build.sh", "1.2.3-rc.1")
	run(t, again, ".ci/release/build.sh", "1.2.3-rc.1", "elsewhere")
	sums, err := os.ReadFile(filepath.Join(first, "dist", "SHA256SUMS"))
	suite.MustSucceed(t, err)
	if others, err := os.ReadFile(filepath.Join(again, "elsewhere", "SHA256SUMS")); err != nil || !bytes.Equal(others, sums) {
		t.Errorf("two builds of one commit (error %v): got the checksums\n%s\nand\n%s\nwant equal checksums", err, sums, others)
	}
	run(t, filepath.Join(first, "dist"), "sha256sum", "--check", "--strict", "SHA256SUMS")

	out := t.TempDir()
	name := "rabbitdelay_1.2.3-rc.1_linux_" + arch
	run(t, out, "tar", "-xzf", filepath.Join(first, "dist", name+".tar.gz"))
	run(t, out, "dpkg-deb", "--extract", filepath.Join(first, "dist/rabbitdelay_1.2.3-rc.1_"+arch+".deb"), "deb")
	head := strings.TrimSpace(run(t, first, "git", "rev-parse", "HEAD"))
	for _, binary := range []string{name + "/rabbitdelay", "deb/usr/bin/rabbitdelay"} {
		var v struct {
			Version, Revision string
			Modified          bool
		}
		suite.MustSucceed(t, json.Unmarshal([]byte(run(t, out, filepath.Join(out, binary), "version", "--json")), &v))
		if v.Version != "v1.2.3-rc.1" || v.Revision != head || v.Modified {
			t.Errorf("%s version: got %+v, want v1.2.3-rc.1 at %s, not modified", binary, v, head)
		}
	}
	if v := run(t, out, "dpkg-deb", "--field", filepath.Join(first, "dist/rabbitdelay_1.2.3-rc.1_"+arch+".deb"), "Version"); strings.TrimSpace(v) != "1.2.3~rc.1" {
		t.Errorf("the package's version is %s, want 1.2.3~rc.1, which is lower than 1.2.3", v)
	}
	var bom struct {
		Components []struct{ Name, Version string }
	}
	data, err := os.ReadFile(filepath.Join(first, "dist", name+".cdx.json"))
	suite.MustSucceed(t, err)
	suite.MustSucceed(t, json.Unmarshal(data, &bom))
	found := map[string]string{}
	for _, c := range bom.Components {
		found[c.Name] = c.Version
	}
	if found["github.com/rabbitmq/amqp091-go"] == "" || found["std"] == "" || len(found) < 30 {
		t.Errorf("the bill of materials has %d modules, want at least 30, including amqp091-go and std: %v", len(found), found)
	}
}

// Changelog fragments become a section of the changelog and are deleted. If a fragment is invalid, the error names it
// and it is kept.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	dir := clone(t)
	fragments := func() []string {
		all, _ := filepath.Glob(filepath.Join(dir, "docs", "changelog", "*.md"))
		return slices.DeleteFunc(all, func(file string) bool { return filepath.Base(file) == "README.md" })
	}
	for _, file := range fragments() { // the fragments of this commit
		suite.MustSucceed(t, os.Remove(file))
	}
	write := func(name, text string) {
		t.Helper()
		suite.MustSucceed(t, os.WriteFile(filepath.Join(dir, "docs", "changelog", name), []byte(text), 0o600))
	}
	write("b.md", "Fixed: One thing.\nAdded: Another.\n")
	write("a.md", "Fixed: A third.\n")
	write("wrong.md", "Improved: everything.\n")
	c := exec.CommandContext(t.Context(), ".ci/release/notes.sh", "9.9.9", "--write")
	c.Dir = dir
	if msg, err := c.CombinedOutput(); err == nil || !strings.Contains(string(msg), "docs/changelog/wrong.md:1:Improved: everything.") {
		t.Errorf(`an invalid fragment: got error %v and output %s, want an error and "docs/changelog/wrong.md:1:Improved: everything."`, err, msg)
	}
	suite.MustSucceed(t, os.Remove(filepath.Join(dir, "docs", "changelog", "wrong.md")))
	want := "### Added\n\n- Another.\n\n### Fixed\n\n- A third.\n- One thing."
	for _, args := range [][]string{{"9.9.9", "--write"}, {"9.9.9"}} {
		if got := strings.TrimSpace(run(t, dir, ".ci/release/notes.sh", args...)); got != want {
			t.Errorf("%v: got\n%s\nwant\n%s", args, got, want)
		}
	}
	if left := fragments(); len(left) != 0 {
		t.Errorf("the remaining fragments: got %v, want none", left)
	}
	if notes := run(t, dir, ".ci/release/notes.sh", "0.1.0"); !strings.Contains(notes, "Strategy `bucket`") {
		t.Errorf("the notes of 0.1.0: got %.200s, want them to contain \"Strategy `bucket`\"", notes)
	}
}
