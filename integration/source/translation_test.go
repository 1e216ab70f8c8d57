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

// A translated document contains the same figures as the English one, and the same code except for comments.
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
			t.Errorf("%s contains different code than %s, want the same except for comments", page, original)
		}
		missing, more := difference(figuresOf(want), figuresOf(got))
		if len(missing) > 0 || len(more) > 0 {
			t.Errorf("%s differs from %s: missing figures %q, additional figures %q, want the same figures", page, original, missing, more)
		}
	}
}

// codeOf returns the code blocks in a document without their comments. It omits blocks marked as text, because they
// contain sentences, which are translated.
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

// difference returns the elements that are only in a and those that are only in b. Both lists must be sorted, and
// duplicates count.
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
