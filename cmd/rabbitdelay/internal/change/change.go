// Package change makes the changes that operators ask for, and records them in the audit: cancel, run, reschedule,
// revive and delete tasks, one or many; pause, resume and limit destinations; change recurring tasks. The commands, the
// console's pages and the API all call it, so that a change has the same effect and the same audit entry wherever an
// operator asks for it.
//
//	change.go       Operator, who makes changes
//	action.go       actions, which are changes to one task or to many
//	filter.go       words that describe a filter
//	destination.go  changes to destinations
//	recurring.go    changes to recurring tasks
package change

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Entry describes a change for the audit.
type Entry struct {
	Action string // such as task.cancel
	Target string // a task's id, a destination or a recurring task; empty if a filter selects the tasks
	Detail string // what neither the action nor the target says, such as the new due time
}

// Operator makes changes on behalf of a person or program. Its methods return the errors of schedule.Store and of
// Record, and a *FieldError for an invalid request.
type Operator struct {
	// Name is recorded with everything that the operator changes.
	Name string
	// Store contains the tasks.
	Store *taskview.Store
	// Record writes an entry to the audit, calls do, and adds the error of do to the entry. If the entry cannot be
	// written, or the operator is not allowed to make changes, Record returns an error without calling do.
	Record func(ctx context.Context, e Entry, do func() error) error
}

// FieldError reports an invalid value in a request. Reason is a sentence that contains the value and what was expected.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Reason }
