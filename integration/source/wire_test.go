package source

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The consumers in other languages remove the headers that docs/wire.md lists before they publish a message again.
func TestWireHeadersToRemove(t *testing.T) {
	names := func(text string) []string {
		list := regexp.MustCompile(`[a-z]+(-[a-z]+)*`).FindAllString(strings.ReplaceAll(text, "rabbitdelay-", ""), -1)
		slices.Sort(list)
		return list
	}
	rule := regexp.MustCompile("Also remove ((`rabbitdelay-[a-z-]+`(, | and )?)+)").FindStringSubmatch(read(t, "docs/wire.md"))
	if rule == nil {
		t.Fatal("docs/wire.md: found no sentence about the headers of rabbitdelay to remove")
	}
	want := names(strings.ReplaceAll(rule[1], " and ", ", "))
	for file, list := range map[string]string{
		"php/consumer.php":   `rabbitdelay-\(([a-z|-]+)\)`,
		"java/Consumer.java": `rabbitdelay-\(([a-z|-]+)\)`,
		"python/consumer.py": `(?s)"BCC",(.+?)\)`,
	} {
		m := regexp.MustCompile(list).FindStringSubmatch(read(t, "integration/wire/"+file))
		if m == nil {
			t.Errorf("%s: found no list of headers to remove", file)
			continue
		}
		if got := names(m[1]); !slices.Equal(got, want) {
			t.Errorf("%s removes the headers %v, want those of docs/wire.md: %v", file, got, want)
		}
	}
}
