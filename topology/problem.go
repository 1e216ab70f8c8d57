package topology

import (
	"errors"

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
