package live

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// State is the outcome of Apply, or of the deletion of a layout, for one object.
type State string

const (
	// StateDeclared means that the object exists and matches the topology. It is unknown whether it existed before.
	StateDeclared State = "declared"
	// StateCreated means that the object did not exist before. It is used only with an Inspector.
	StateCreated State = "created"
	// StateExisted means that the object existed before. It is used only with an Inspector.
	StateExisted State = "existed"
	// StateFailed means that the broker refused the object. The error contains the reason.
	StateFailed State = "failed"
	// StateUntried means that Apply did not try to declare the object, because it refused the topology or an earlier
	// stage failed.
	StateUntried State = "not tried"
	// StateUnknown means that the object may or may not have been declared: the connection or the context ended before
	// the broker answered, or the broker refused an unidentified queue because of a limit.
	StateUnknown State = "unknown"
	// StateDeleted means that the object was deleted.
	StateDeleted State = "deleted"
	// StateAbsent means that the object did not exist when the deletion started.
	StateAbsent State = "absent"
	// StateKept means that the object was kept when the layout was deleted.
	StateKept State = "kept"
)

// Result is the state of one object.
type Result struct {
	Kind     topology.Kind `json:"kind"`
	Name     string        `json:"name"` // for a binding, its description
	State    State         `json:"state"`
	Messages int64         `json:"messages,omitempty"` // number of messages that were deleted with a queue
	Reason   string        `json:"reason,omitempty"`   // why the object was kept
}

// Report lists the result of Apply, or of the deletion of a layout, for each object. It is complete even if the
// operation returned an error.
type Report struct {
	Results []Result `json:"results"`
	// Plan is the Inspector's plan before any change, including the policies that Force overrode. It is nil without
	// an Inspector.
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

// String summarises the report in one line, e.g. "3 created, 12 existed".
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

// ObjectError names the object that the broker refused to declare or delete, and the reason. Use errors.As to get the
// *amqp091.Error.
type ObjectError struct {
	Kind topology.Kind
	Name string
	Op   string // declare, look for, restore or delete
	Err  error
}

func (e *ObjectError) Error() string {
	name := e.Name // a binding's description is already quoted
	if e.Kind != topology.KindBinding {
		name = strconv.Quote(name)
	}
	msg := fmt.Sprintf("%s %s %s: %v", e.Op, e.Kind, name, e.Err)
	if amqpErr, ok := errors.AsType[*amqp.Error](e.Err); ok {
		switch {
		case channels.IsNameHeld(amqpErr):
			msg += "; " + channels.NameHeldAdvice
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

// objectError returns a *topology.ConflictError if the object exists with different arguments, and an *ObjectError for
// any other failure.
func objectError(kind topology.Kind, name, op string, table map[string]any, err error) error {
	if m, ok := channels.Inequivalent(err, table); ok {
		return &topology.ConflictError{Kind: kind, Name: name, Argument: m.Argument, Want: m.Want, Have: m.Have}
	}
	return &ObjectError{Kind: kind, Name: name, Op: op, Err: err}
}
