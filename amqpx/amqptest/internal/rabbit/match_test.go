package rabbit

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func matchTopic(pattern, key string) bool { return matchWords(words(pattern), words(key)) }

func TestMatchTopic(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"", "", true},
		{"", "a", false},
		{"#", "", true},
		{"#", "a.b", true},
		{"*", "", false},
		{"*", "a", true},
		{"*", "a.b", false},
		{"*.*", ".", true},
		{"*.b", ".b", true},
		{"a.#", "a", true},
		{"a.#", "a.", true},
		{"a.#.b", "a.b", true},
		{"a.#.b", "a.b.c.b", true},
		{"a.#.b", "a.b.c", false},
		{"a.*.b", "a..b", true},
		{"a.*.b", "a.b", false},
		{"#.a.#", "x.a.y", true},
		{"a*", "ab", false},
		{"a*", "a*", true},
		{"a.#", "ab.c", false},
	} {
		if got := matchTopic(c.pattern, c.key); got != c.want {
			t.Errorf("matchTopic(%q, %q) = %v, want %v", c.pattern, c.key, got, c.want)
		}
	}
}

// plainMatch reports whether the topic pattern p matches the key k. It is simple but slow.
func plainMatch(p, k []string) bool {
	switch {
	case len(p) == 0:
		return len(k) == 0
	case p[0] == "#":
		return plainMatch(p[1:], k) || len(k) > 0 && plainMatch(p, k[1:])
	}
	return len(k) > 0 && (p[0] == "*" || p[0] == k[0]) && plainMatch(p[1:], k[1:])
}

func TestMatchTopicIsAPlainMatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := func(of ...string) []string { return rapid.SliceOfN(rapid.SampledFrom(of), 1, 8).Draw(t, "words") }
		p, k := words("a", "b", "", "*", "#"), words("a", "b", "")
		if p[0] == "" && len(p) == 1 || k[0] == "" && len(k) == 1 {
			return // an empty key has no words
		}
		if got, want := matchTopic(strings.Join(p, "."), strings.Join(k, ".")), plainMatch(p, k); got != want {
			t.Fatalf("matchTopic(%q, %q) = %v, want %v", p, k, got, want)
		}
	})
}

// Matching a pattern with many wildcards does not take exponential time: with plainMatch, this test would not finish.
func TestMatchTopicIsQuick(t *testing.T) {
	if matchTopic(strings.Repeat("#.a.", 60)+"b", strings.Repeat("a.", 120)+"c") {
		t.Error("matchTopic of a key with another last word: got true, want false")
	}
}
