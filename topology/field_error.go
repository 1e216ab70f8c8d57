package topology

import (
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// FieldError names the field of a Config that is wrong, its value and its bound.
type FieldError struct {
	Of    string // whose field, e.g. "bucket"; may be empty
	Field string // the Go name, e.g. "Resolution"
	Value any
	Want  string // the bound
}

func (e *FieldError) Error() string {
	name := e.Field
	if e.Of != "" {
		name = e.Of + ": " + name
	}
	return fmt.Sprintf("%s is %s; it must be %s", name, e.Given(), e.Want)
}

// Given returns Value as a message shows it: text in quotes, durations as
// FormatDuration writes them.
func (e *FieldError) Given() string {
	switch v := e.Value.(type) {
	case string:
		return fmt.Sprintf("%q", yamldoc.Clip(v))
	case time.Duration:
		return FormatDuration(v)
	}
	return fmt.Sprint(e.Value)
}
