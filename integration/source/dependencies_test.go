package source

import (
	"regexp"
	"slices"
	"testing"
)

// docs/dependencies.md has a row for each module that go.mod requires directly, and no other rows.
func TestDependenciesAreExplained(t *testing.T) {
	named := func(file, pattern string) []string {
		var names []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return names
	}
	required := named("go.mod", `(?m)^\t(\S+) v\S+$`)
	explained := named("docs/dependencies.md", `(?m)^\| (\S+\.\S+/\S+) \|`)
	if len(required) < 20 || !slices.Equal(required, explained) {
		t.Errorf("docs/dependencies.md explains\n%q\nwant the modules that go.mod requires\n%q", explained, required)
	}
}
