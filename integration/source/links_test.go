package source

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	links    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fences   = regexp.MustCompile("(?ms)^```.*?\n```")
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links between documents lead to existing files and headings.
func TestLinks(t *testing.T) {
	for _, file := range documents(t) {
		text := fences.ReplaceAllString(read(t, file), "")
		for _, m := range links.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, want an existing file", file, m[1])
				continue
			}
			if anchor != "" && strings.HasSuffix(path, ".md") && !anchors(t, path)[anchor] {
				t.Errorf("%s links to %s, want the anchor of an existing heading", file, m[1])
			}
		}
	}
}

// documents returns all documents of the project.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", ".github/*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("got no documents for %s (error %v), want at least one", pattern, err)
		}
		all = append(all, files...)
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the anchors of a document's headings, as code hosts generate them.
func anchors(t *testing.T, file string) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, m := range headings.FindAllStringSubmatch(fences.ReplaceAllString(read(t, file), ""), -1) {
		slug := notSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		known[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return known
}
