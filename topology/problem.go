package topology

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is wrapped by every *ValidationError.
var ErrInvalid = errors.New("topology is not valid")

// Problem is one thing wrong with a description: where, what was expected, what
// came.
type Problem struct {
	// Path leads to the value, e.g. "queues[2].message_ttl". It is empty for the
	// document as a whole.
	Path string
	// Line and Column are where it stands in the YAML, both from 1; 0 for a
	// topology that was built in Go.
	Line, Column int
	Message      string
}

func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ", column %d", p.Column)
		}
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// maxProblems keeps the report of a file that is something else readable.
const maxProblems = 100

// ValidationError lists the problems of a description, all of them up to 100,
// those of a YAML document in the order of their lines.
type ValidationError struct {
	Problems []Problem
}

func (e *ValidationError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *ValidationError) Unwrap() error { return ErrInvalid }

// Option changes what ParseYAML and Validate accept.
type Option func(*rules)

// rules are the options of one validation.
type rules struct {
	prefix     string
	otherKeys  []string
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

// OtherKeys names further top-level keys that a document may have and that
// ParseYAML skips without looking at them.
func OtherKeys(keys ...string) Option {
	return func(r *rules) { r.otherKeys = append(r.otherKeys, keys...) }
}

// AllowUndeclared accepts references to exchanges and queues that the topology
// does not declare, for descriptions of a part of what is on the broker.
func AllowUndeclared() Option { return func(r *rules) { r.undeclared = true } }
