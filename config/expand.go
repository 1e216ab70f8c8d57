package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

var errExpansion = errors.New("expected ${NAME} or ${NAME:-value}, where NAME is of letters, digits and underscores; write $${ for a literal ${")

// expand puts environment variables into a value. What a variable contains is
// not expanded again.
func expand(value string) (string, error) {
	if !strings.Contains(value, "${") {
		return value, nil
	}
	var b strings.Builder
	for {
		at := strings.Index(value, "${")
		if at < 0 {
			b.WriteString(value)
			return b.String(), nil
		}
		if at > 0 && value[at-1] == '$' { // $${
			b.WriteString(value[:at-1] + "${")
			value = value[at+2:]
			continue
		}
		b.WriteString(value[:at])
		reference, rest, ok := strings.Cut(value[at+2:], "}")
		if !ok {
			return "", errExpansion
		}
		name, fallback, hasFallback := strings.Cut(reference, ":-")
		if !variableName(name) {
			return "", errExpansion
		}
		content, set := os.LookupEnv(name)
		switch {
		case hasFallback && content == "":
			content = fallback
		case !set:
			return "", fmt.Errorf("the environment variable %s is not set; set it, or write ${%s:-value}", name, name)
		}
		b.WriteString(content)
		value = rest
	}
}

func variableName(s string) bool {
	for i, r := range s {
		switch {
		case r == '_', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z':
		case i > 0 && r >= '0' && r <= '9':
		default:
			return false
		}
	}
	return s != ""
}
