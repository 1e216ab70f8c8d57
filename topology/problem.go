package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// ErrInvalid is wrapped by every *ValidationError.
var ErrInvalid = errors.New("topology is not valid")

// Problem is one thing wrong with a description: where, what was expected, what
// came. Line and Column are 0 for a topology that was built in Go.
type Problem = yamldoc.Problem

// ValidationError lists the problems of a description, all of them up to 100,
// those of a YAML document in the order of their lines.
type ValidationError struct {
	Problems []Problem
}

func (e *ValidationError) Error() string { return yamldoc.Problems(e.Problems).String() }

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *ValidationError) Unwrap() error { return ErrInvalid }

// Option changes what ParseYAML and Validate accept.
type Option func(*rules)

// rules are the options of one validation.
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

// AllowUndeclared accepts references to exchanges and queues that the topology
// does not declare, for descriptions of a part of what is on the broker.
func AllowUndeclared() Option { return func(r *rules) { r.undeclared = true } }

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

// DefaultPrefix begins the names of the objects that delay strategies create.
const DefaultPrefix = "delay"

// maxPrefix leaves room for the longest name that a strategy makes with a prefix.
const maxPrefix = 64

// CheckPrefix refuses a prefix from which no names of broker objects can be
// made: an empty one, one of more than 64 bytes, one that is not UTF-8, one with
// line breaks, which brokers cut out of names, or one that begins with "amq.",
// which they reserve. The error is a *FieldError.
func CheckPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "\r\n") || strings.HasPrefix(prefix, "amq.") {
		return &FieldError{
			Field: "Prefix", Value: prefix,
			Want: fmt.Sprintf("UTF-8 text of 1 to %d bytes without line breaks that does not begin with \"amq.\"", maxPrefix),
		}
	}
	return nil
}
