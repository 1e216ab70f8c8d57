package source

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The site's navigation lists every document in docs or its folder, and every listed document exists.
func TestSiteListsDocuments(t *testing.T) {
	_, nav, ok := strings.Cut(read(t, "docs/site/mkdocs.yml"), "\nnav:\n")
	if !ok {
		t.Fatal("docs/site/mkdocs.yml contains no section nav, want one")
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)(\S+\.md|\S+/\*)$`).FindAllStringSubmatch(nav, -1) {
		listed = append(listed, m[1])
	}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got no files (error %v), want at least one", pattern, err)
		}
		for _, file := range files {
			page := strings.TrimPrefix(filepath.ToSlash(file), "docs/")
			if !slices.Contains(listed, page) && !slices.Contains(listed, path.Dir(page)+"/*") {
				t.Errorf("the nav in docs/site/mkdocs.yml does not list %s, want it or its folder", file)
			}
		}
	}
	// These pages are generated from files outside docs.
	outside := []string{"index.md", "zh-CN/index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, line := range listed {
		if files, err := filepath.Glob(path.Join("docs", line)); (err != nil || len(files) == 0) && !slices.Contains(outside, line) {
			t.Errorf("the nav in docs/site/mkdocs.yml lists %s, which does not exist", line)
		}
	}
	if len(listed) < 30 {
		t.Errorf("the nav lists %d documents, want at least 30", len(listed))
	}
}
