package config

import (
	"errors"
	"fmt"
	"strings"
)

// ErrConfig is wrapped by every *Error.
var ErrConfig = errors.New("configuration is not valid")

// Problem is one thing that is wrong in a configuration.
type Problem struct {
	Path   string // of the setting, such as delay.bucket.resolution
	Origin string // where its value came from: a line of the file, a variable, a flag; empty for a default
	// Message says what came and what was expected. It never contains a URL.
	Message string
	line    int
	column  int
}

func (p Problem) String() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{p.Origin, p.Path, p.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Error lists everything that is wrong in a configuration, up to 100 problems.
type Error struct {
	File     string // empty without one
	Problems []Problem
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if len(e.Problems) == 1 {
		b.WriteString(e.Problems[0].String())
		return b.String()
	}
	fmt.Fprintf(&b, "%d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrConfig) true.
func (e *Error) Unwrap() error { return ErrConfig }

// maxProblems keeps the report of a file that is something else readable.
const maxProblems = 100

func lineOrigin(line, column int) string {
	switch {
	case line == 0:
		return ""
	case column == 0:
		return fmt.Sprintf("line %d", line)
	}
	return fmt.Sprintf("line %d, column %d", line, column)
}
