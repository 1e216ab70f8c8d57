package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// State is what Apply or Destroy did about an object.
type State string

const (
	// Declared objects exist now as described; whether it did before is not known.
	Declared State = "declared"
	// Created objects did not exist before; known with an Inspector only.
	Created State = "created"
	// Existed objects did; known with an Inspector only.
	Existed State = "existed"
	// Failed objects were refused by the broker; the error says why.
	Failed State = "failed"
	// Untried objects were neither made nor looked at: something failed before.
	Untried State = "not tried"
	// Unknown objects were sent to the broker, and the connection or the context
	// ended before an answer.
	Unknown State = "unknown"
	// Deleted objects were removed by Destroy.
	Deleted State = "deleted"
	// Absent objects were not there when Destroy began.
	Absent State = "absent"
	// Kept objects were left by Destroy.
	Kept State = "kept"
)

// Result is the state of one object.
type Result struct {
	Kind     Kind   `json:"kind"`
	Name     string `json:"name"` // of a binding, its description
	State    State  `json:"state"`
	Messages int64  `json:"messages,omitempty"` // deleted together with a queue
	Reason   string `json:"reason,omitempty"`   // why Destroy kept it
}

// Report is what Apply or Destroy did, object by object. It is complete also
// when they return an error.
type Report struct {
	Results []Result `json:"results"`
	// Plan is what an Inspector found before; nil without one.
	Plan *Plan `json:"plan,omitempty"`
	// Warnings are those about policies that were in force and overridden by
	// Force.
	Warnings []Warning     `json:"-"`
	Took     time.Duration `json:"-"`
}

// Count is how many objects have the state.
func (r Report) Count(s State) int {
	n := 0
	for _, x := range r.Results {
		if x.State == s {
			n++
		}
	}
	return n
}

// String sums the report up in one line, e.g. "3 created, 12 existed".
func (r Report) String() string {
	var parts []string
	for _, s := range []State{Created, Existed, Declared, Deleted, Absent, Kept, Failed, Unknown, Untried} {
		if n := r.Count(s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	return strings.Join(parts, ", ")
}

// ErrConflict is wrapped by every *ConflictError.
var ErrConflict = errors.New("exists with other arguments")

// ConflictError says that an object exists on the broker and differs in an
// argument. Brokers do not change objects in place.
type ConflictError struct {
	Kind     Kind
	Name     string
	Argument string
	Want     any // nil for absent
	Have     any // nil for absent, or the broker's text of it
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s %q exists with another %s: wanted %s, found %s; give the new one another name, or empty and delete the old one",
		e.Kind, e.Name, e.Argument, FormatValue(e.Want), FormatValue(e.Have))
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// ObjectError says which object the broker refused to declare or delete, and
// why; errors.As finds the *amqp091.Error in it.
type ObjectError struct {
	Kind Kind
	Name string
	Op   string // declare, inspect or delete
	Err  error
}

func (e *ObjectError) Error() string {
	msg := fmt.Sprintf("%s %s %s: %v", e.Op, e.Kind, quoteName(e.Kind, e.Name), e.Err)
	if amqpErr, ok := errors.AsType[*amqp.Error](e.Err); ok {
		switch {
		case amqpErr.Code == amqp.AccessRefused:
			msg += "; the user needs the permissions to configure, write and read it"
		case strings.Contains(amqpErr.Reason, "unknown exchange type"):
			msg += "; enable the plugin that provides the type, or choose another one"
		}
	}
	return msg
}

// Unwrap gives the broker's error.
func (e *ObjectError) Unwrap() error { return e.Err }

// quoteName: a binding's description already has its quotes.
func quoteName(k Kind, name string) string {
	if k == KindBinding {
		return name
	}
	return fmt.Sprintf("%q", name)
}

// ErrPolicy is wrapped by every *PolicyError.
var ErrPolicy = errors.New("policies break delay queues")

// PolicyError says which policies would break what Apply was to declare.
type PolicyError struct{ Warnings []Warning }

func (e *PolicyError) Error() string {
	return "refused, because policies would break delay queues: " + strings.Join(groupWarnings(e.Warnings), "; ")
}

// Unwrap makes errors.Is(err, ErrPolicy) true.
func (e *PolicyError) Unwrap() error { return ErrPolicy }

// objectError types the error of a declaration.
func objectError(kind Kind, name, op string, table amqp.Table, err error) error {
	if m, ok := parseInequivalent(err, table); ok {
		return &ConflictError{Kind: kind, Name: name, Argument: m.Argument, Want: m.Want, Have: m.Have}
	}
	return &ObjectError{Kind: kind, Name: name, Op: op, Err: err}
}
