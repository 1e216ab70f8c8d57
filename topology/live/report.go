package live

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// State is what Apply or Destroy did about an object.
type State string

const (
	// StateDeclared: it exists now as described; whether it did before is not known.
	StateDeclared State = "declared"
	// StateCreated: it did not exist before. Known with an Inspector only.
	StateCreated State = "created"
	// StateExisted: it did. Known with an Inspector only.
	StateExisted State = "existed"
	// StateFailed: the broker refused it; the error says why.
	StateFailed State = "failed"
	// StateUntried: it was neither made nor looked at, since something failed before.
	StateUntried State = "not tried"
	// StateUnknown: it was sent to the broker, but the connection or the context ended before an answer.
	StateUnknown State = "unknown"
	// StateDeleted: Destroy removed it.
	StateDeleted State = "deleted"
	// StateAbsent: it was not there when Destroy began.
	StateAbsent State = "absent"
	// StateKept: Destroy left it.
	StateKept State = "kept"
)

// Result is the state of one object.
type Result struct {
	Kind     topology.Kind `json:"kind"`
	Name     string        `json:"name"` // of a binding, its description
	State    State         `json:"state"`
	Messages int64         `json:"messages,omitempty"` // deleted together with a queue
	Reason   string        `json:"reason,omitempty"`   // why Destroy kept it
}

// Report is what Apply or Destroy did, object by object. It is complete also when they return an error.
type Report struct {
	Results []Result `json:"results"`
	// Plan is what an Inspector found before, the policies included that Force overrode; nil without one.
	Plan *plan.Plan    `json:"plan,omitempty"`
	Took time.Duration `json:"-"`
}

// Count returns the number of objects in the state.
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
	for _, s := range []State{StateCreated, StateExisted, StateDeclared, StateDeleted, StateAbsent, StateKept, StateFailed, StateUnknown, StateUntried} {
		if n := r.Count(s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	return strings.Join(parts, ", ")
}

// ObjectError names the object that the broker refused to declare or delete, and
// why; errors.As finds the *amqp091.Error in it.
type ObjectError struct {
	Kind topology.Kind
	Name string
	Op   string // declare, look for, restore or delete
	Err  error
}

func (e *ObjectError) Error() string {
	name := e.Name // a binding's description already has its quotes
	if e.Kind != topology.KindBinding {
		name = strconv.Quote(name)
	}
	msg := fmt.Sprintf("%s %s %s: %v", e.Op, e.Kind, name, e.Err)
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

// Unwrap returns the broker's error.
func (e *ObjectError) Unwrap() error { return e.Err }

// objectError types the error of a declaration.
func objectError(kind topology.Kind, name, op string, table map[string]any, err error) error {
	if m, ok := parseInequivalent(err, table); ok {
		return &plan.ConflictError{Kind: kind, Name: name, Argument: m.Argument, Want: m.Want, Have: m.Have}
	}
	return &ObjectError{Kind: kind, Name: name, Op: op, Err: err}
}
