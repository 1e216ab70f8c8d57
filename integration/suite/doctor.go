package suite

import (
	"strings"
)

// ShellWords splits a command like a shell. It supports single quotes.
func ShellWords(s string) []string {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range s {
		switch {
		case r == '\'':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}
