package source

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Actions are pinned to commits. Otherwise, anyone who can move an action's tag could change what is released.
func TestWorkflowsPinActions(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, error %v, want at least one workflow", files, err)
	}
	uses := regexp.MustCompile(`(?m)uses: (.+)$`)
	pinned := regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllSubmatch(text, -1) {
			if !pinned.Match(m[1]) {
				t.Errorf("%s uses %s, want a commit with its version as a comment", file, m[1])
			}
		}
	}
}

// The release starts after the tests have passed, and the image is built after the files that it contains.
func TestReleaseIsInOrder(t *testing.T) {
	text, err := os.ReadFile(".github/workflows/release.yml")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(text)
	for _, step := range []string{
		".ci/run", "make vulncheck", "needs: [test, vulnerabilities]", "subject-checksums: dist/SHA256SUMS", "gh release create",
		"docker/build-push-action", "subject-digest: ${{ steps.push.outputs.digest }}",
	} {
		_, after, ok := strings.Cut(rest, step)
		if !ok {
			t.Fatalf("release.yml does not contain the step %q after the previous ones, want it there", step)
		}
		rest = after
	}
}
