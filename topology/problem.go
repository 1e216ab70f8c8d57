package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// ErrInvalid is wrapped by every *ValidationError.
var ErrInvalid = errors.New("invalid topology")

// Problem describes one mistake in a description: its place, what was expected and what was found.
type Problem struct {
	// Path is the path of the value, e.g. "queues[2].message_ttl". It is empty if the problem concerns the whole
	// document.
	Path         string
	Origin       string // the flag or the environment variable that set the value; empty for a document
	Line, Column int    // position in the document, counted from 1; 0 if unknown, as for a topology that was built in Go
	Message      string
}

func (p Problem) String() string { return yamldoc.Problem(p).String() }

// published converts the problems to the public type.
func published(found yamldoc.Problems) []Problem {
	list := make([]Problem, len(found))
	for i, p := range found {
		list[i] = Problem(p)
	}
	return list
}

// ValidationError lists the problems of a description, up to 100 of them. The problems of a YAML document are in the
// order of its lines.
type ValidationError struct {
	Problems []Problem
}

func (e *ValidationError) Error() string {
	all := make(yamldoc.Problems, len(e.Problems))
	for i, p := range e.Problems {
		all[i] = yamldoc.Problem(p)
	}
	return all.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *ValidationError) Unwrap() error { return ErrInvalid }

// Option changes the rules of ParseYAML and Validate.
type Option func(*rules)

// rules contains the options of one validation.
type rules struct {
	prefix     string
	undeclared bool
}

func newRules(opts []Option) rules {
	r := rules{prefix: DefaultPrefix}
	for _, o := range opts {
		o(&r)
	}
	return r
}

// DelayPrefix sets the prefix of the delay strategies' own objects, which a
// description may refer to without declaring them. The default is DefaultPrefix.
func DelayPrefix(prefix string) Option { return func(r *rules) { r.prefix = prefix } }

// AllowUndeclared accepts references to exchanges and queues that the topology does not declare. Use it for
// descriptions of only a part of the objects on a broker.
func AllowUndeclared() Option { return func(r *rules) { r.undeclared = true } }

// FieldError reports an invalid field of a Config, its value and its bounds.
type FieldError struct {
	Of    string // owner of the field, e.g. "bucket"; may be empty
	Field string // the Go name, e.g. "Resolution"
	Value any
	Want  string // the allowed values
}

func (e *FieldError) Error() string {
	name := e.Field
	if e.Of != "" {
		name = e.Of + ": " + name
	}
	return fmt.Sprintf("%s is %s; it must be %s", name, e.Given(), e.Want)
}

// Given returns Value as it is shown in a message, with strings in quotes and durations in the form of FormatDuration.
func (e *FieldError) Given() string {
	switch v := e.Value.(type) {
	case string:
		return fmt.Sprintf("%q", yamldoc.Clip(v))
	case time.Duration:
		return FormatDuration(v)
	}
	return fmt.Sprint(e.Value)
}

// DefaultPrefix is the default prefix of the names of the objects that delay strategies declare.
const DefaultPrefix = "delay"

// maxPrefix limits the prefix so that the strategies' longest names are still valid.
const maxPrefix = 64

// CheckPrefix rejects a prefix that cannot be used in names of broker objects: one that is empty, is longer than 64
// bytes, is not UTF-8, contains line breaks (which brokers remove from names), or begins with "amq." (which brokers
// reserve). The error is a *FieldError.
func CheckPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "\r\n") || strings.HasPrefix(prefix, "amq.") {
		return &FieldError{
			Field: "Prefix", Value: prefix,
			Want: fmt.Sprintf("UTF-8 text of 1 to %d bytes without line breaks that does not begin with \"amq.\"", maxPrefix),
		}
	}
	return nil
}
