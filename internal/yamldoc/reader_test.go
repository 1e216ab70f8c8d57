package yamldoc_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// read reads a document whose keys are list and the given ones, and returns every path with its value and YAML tag.
func read(r *yamldoc.Reader, keys ...string) string {
	var got []string
	value := func(n *yaml.Node, path string) { got = append(got, path+"="+n.Value+" "+n.ShortTag()) }
	fields := map[string]yamldoc.Field{"list": func(n *yaml.Node, path string) { r.List(n, path, value) }}
	for _, k := range keys {
		fields[k] = value
	}
	r.Document(fields)
	return strings.Join(got, "; ")
}

func TestAliasHasItsOwnPlace(t *testing.T) {
	r := yamldoc.Parse([]byte("a: &a 1\nlist:\n  - *a\n"))
	if got := read(r, "a"); got != "a=1 !!int; list[0]=1 !!int" {
		t.Errorf(`reading a document with an alias: got %q and problems %v, want "a=1 !!int; list[0]=1 !!int" and none`, got, r.Problems)
	}
	if got := r.Places["list[0]"].String(); got != "line 3, column 5" {
		t.Errorf(`place of the alias: got %q, want "line 3, column 5"`, got)
	}
}

// Each value is expanded only once, even if an alias refers to it.
func TestExpandsOnce(t *testing.T) {
	r := yamldoc.Parse([]byte("a: &a 1\nb: *a\nlist: [*a, '1']\nbad: '!'\n"))
	r.Expand = func(_, text string) (string, error) {
		if text == "!" {
			return "", errors.New("no such variable")
		}
		return text + "7", nil
	}
	if got := read(r, "a", "b", "bad"); got != "a=17 !!int; b=17 !!int; list[0]=17 !!int; list[1]=17 !!str; bad=! !!str" {
		t.Errorf(`reading a document with variables: got %s, want "a=17 !!int; b=17 !!int; list[0]=17 !!int; list[1]=17 !!str; bad=! !!str"`, got)
	}
	if got := r.Problems.String(); got != "line 4, column 6: bad: no such variable" {
		t.Errorf(`the problems of a document with a missing variable: got %s, want "line 4, column 6: bad: no such variable"`, got)
	}
}

func TestHiddenValuesAreNotShown(t *testing.T) {
	for hidden, want := range map[bool]string{true: "a single value", false: `the text "hunter2"`} {
		r := yamldoc.Parse([]byte("list: hunter2\n"))
		r.Hidden = func(path string) bool { return hidden && path == "list" }
		read(r)
		if got := r.Problems.String(); got != `line 1, column 7: list: expected a list (each item begins with "- "), got `+want {
			t.Errorf(`hidden %t: got problems %q, want suffix %q`, hidden, got, want)
		}
	}
}

// Add reports a problem at its value's place, or at the place of a value that contains it. It omits a problem in a
// value that already has one.
func TestAddFindsPlaces(t *testing.T) {
	r := yamldoc.Parse([]byte("list:\n  - 1\n  - {}\nother: 5\n"))
	read(r)
	r.Problems.Add([]yamldoc.Problem{
		{Path: "list[1].name", Message: "missing"}, {Path: "other.x", Message: "repeats"}, {Path: "elsewhere", Message: "nowhere"},
	}, r.Places)
	r.Problems.Sort()
	want := `3 problems:
  elsewhere: nowhere
  line 3, column 5: list[1].name: missing
  line 4, column 1: other: unknown key "other"; expected one of list`
	if got := r.Problems.String(); got != want {
		t.Errorf("the problems after Add: got %s, want %s", got, want)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var doc strings.Builder
	for i := range 200 {
		fmt.Fprintf(&doc, "k%d: 1\n", i)
	}
	r := yamldoc.Parse([]byte(doc.String()))
	read(r)
	if len(r.Problems) != 100 {
		t.Errorf("a document with 200 unknown keys: got %d problems, want 100, the maximum", len(r.Problems))
	}
}

func TestInvalidDocuments(t *testing.T) {
	for doc, want := range map[string]string{
		"a: [\n":              "line 1: not YAML: did not find expected node content",
		"a: *hunter2\n":       "not YAML: an alias (a value that begins with *) without an anchor; put the value in quotes if it is not meant as an alias",
		"a: 1\n---\nb: 1\n":   "line 2, column 1: a second document begins here; put everything into one document",
		"a: 1\n---\nb: [\n":   "line 3: not YAML: did not find expected node content",
		"[a]: 1\n":            "line 1, column 1: expected a key, got a list",
		"'x://u:pw@h': 1\n":   `line 1, column 1: (a URL): unknown key "(a URL)"; expected one of a, list`,
		"y: &y {}\n<<: *y\n":  `line 1, column 1: y: unknown key "y"; expected one of a, list`,
		"- a\n":               "line 1, column 1: expected a mapping with the keys a, list; got a list",
		"a: 1\nlist:\na: 2\n": `line 3, column 1: a: the key "a" already occurs in line 1; remove one of them`,
	} {
		r := yamldoc.Parse([]byte(doc))
		read(r, "a")
		if got := r.Problems.String(); got != want {
			t.Errorf("the document %q: got problems %q, want %q", doc, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	cases := map[string]string{
		"short":                       "short",
		strings.Repeat("é", 21):       strings.Repeat("é", 20) + "…",
		"x" + strings.Repeat("é", 21): "x" + strings.Repeat("é", 19) + "…",
		"amqp://u:hunter2@h":          "(a URL)",
		"https://h/?password=hunter2": "(a URL)",
	}
	for _, s := range slices.Sorted(maps.Keys(cases)) {
		if got := yamldoc.Clip(s); got != cases[s] {
			t.Errorf("Clip(%q) = %q, want %q", s, got, cases[s])
		}
	}
}
