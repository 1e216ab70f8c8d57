package source

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	comments = regexp.MustCompile(`(?m)(^|\s)(//|#) .*$`)
	numbers  = regexp.MustCompile(`\d+(?:[.,:]\d+)*`)
	targets  = regexp.MustCompile(`\]\([^)]*\)`)
)

// A translated document shows the same code as the English one, except for comments, and the same figures.
func TestTranslations(t *testing.T) {
	pages, err := filepath.Glob("docs/zh-CN/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("got %v, error %v, want at least one translation", pages, err)
	}
	originals := map[string]string{"README.zh-CN.md": "README.md"}
	for _, page := range pages {
		originals[page] = filepath.Join("docs", filepath.Base(page))
	}
	for page, original := range originals {
		got, want := read(t, page), read(t, original)
		if codeOf(got) != codeOf(want) {
			t.Errorf("%s shows different code than %s", page, original)
		}
		missing, more := difference(figuresOf(want), figuresOf(got))
		if len(missing) > 0 || len(more) > 0 {
			t.Errorf("%s: figures of %s that are missing: %q; additional figures: %q", page, original, missing, more)
		}
	}
}

// codeOf returns the fenced code of a document without its comments. A fence marked as text contains sentences, which
// are translated.
func codeOf(text string) string {
	code := slices.DeleteFunc(fences.FindAllString(text, -1), func(fence string) bool { return strings.HasPrefix(fence, "```text") })
	return comments.ReplaceAllString(strings.Join(code, "\n"), "")
}

// figuresOf returns the numbers in a document's sentences and tables, sorted.
func figuresOf(text string) []string {
	found := numbers.FindAllString(targets.ReplaceAllString(fences.ReplaceAllString(text, ""), ""), -1)
	slices.Sort(found)
	return found
}

// difference returns the elements that are only in a and those that are only in b, both sorted, with their
// multiplicity.
func difference(a, b []string) (onlyA, onlyB []string) {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] == b[0]:
			a, b = a[1:], b[1:]
		case a[0] < b[0]:
			onlyA, a = append(onlyA, a[0]), a[1:]
		default:
			onlyB, b = append(onlyB, b[0]), b[1:]
		}
	}
	return append(onlyA, a...), append(onlyB, b...)
}
