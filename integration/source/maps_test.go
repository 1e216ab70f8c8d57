package source_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var goFile = regexp.MustCompile(`\b[a-z_0-9]+\.go\b`)

// A doc.go that is a map of its package, because it names most files, names all of them, and no others.
func TestMapsAreComplete(t *testing.T) {
	docs := 0
	err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "doc.go" {
			return err
		}
		docs++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		list, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.go"))
		if err != nil {
			return err
		}
		var have []string
		for _, f := range list {
			if name := filepath.Base(f); name != "doc.go" && !strings.HasSuffix(name, "_test.go") {
				have = append(have, name)
			}
		}
		named := goFile.FindAllString(string(text), -1)
		missing := slices.DeleteFunc(slices.Clone(have), func(name string) bool { return slices.Contains(named, name) })
		if 2*len(missing) < len(have) && len(missing) > 0 {
			t.Errorf("%s names most files of its package, but not %s", path, strings.Join(missing, ", "))
		}
		for _, name := range named {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), name)); err != nil && 2*len(missing) < len(have) {
				t.Errorf("%s names %s, which is not there", path, name)
			}
		}
		return nil
	})
	if err != nil || docs < 30 {
		t.Fatalf("%d doc.go: %v", docs, err)
	}
}
