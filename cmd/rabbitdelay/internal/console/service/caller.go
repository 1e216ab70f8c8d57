package service

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// Role is a caller's set of permissions.
type Role string

// The roles. An operator may do everything that a viewer may do.
const (
	RoleViewer   Role = "viewer"   // sees everything except bodies and most header values
	RoleOperator Role = "operator" // sees everything and changes things
)

// May reports whether the role includes need.
func (r Role) May(need Role) bool {
	return r == RoleOperator || r == RoleViewer && need == RoleViewer
}

// Identity is the name and role of a caller.
type Identity struct {
	Name string
	Role Role
}

// Caller describes who sent a request, together with what a page needs to render its answer. The handler in front of
// the pages and the API stores it in the request's context.
type Caller struct {
	Identity

	// FormToken is sent with every form, in the field FormTokenField.
	FormToken string
	// Prefix precedes the path of every link and form. It is empty, or a path such as /rabbitdelay.
	Prefix string
	// Session is true if the caller logged in with the form, and can therefore log out.
	Session bool
}

// FormTokenField is the name of the hidden field of every form that holds the FormToken.
const FormTokenField = "token"

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller in ctx. If ctx has none, it returns the zero value, which has no permissions.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Hidden is shown to viewers in place of a value that only an operator may see.
const Hidden = "(hidden)"

// harmless reports whether a header of this name never contains confidential data.
func harmless(name string) bool {
	name = strings.ToLower(name)
	return name == "traceparent" || strings.HasPrefix(name, naming.HeaderPrefix) || strings.HasPrefix(name, "x-death") || strings.HasPrefix(name, "x-first-death")
}

// veilTask hides the body and confidential header values from viewers.
func veilTask(who Identity, t *schedule.Task) {
	if !who.Role.May(RoleOperator) {
		t.Body, t.Headers = nil, veilHeaders(t.Headers, Hidden)
	}
}

// veilDead hides the bodies and confidential header values of messages from viewers.
func veilDead(who Identity, list []inspect.DeadLetter) {
	if who.Role.May(RoleOperator) {
		return
	}
	for i := range list {
		d := *list[i].Delivery
		d.Body, d.Headers = nil, veilHeaders[any](d.Headers, Hidden)
		list[i].Delivery = &d
	}
}

func veilHeaders[V any](headers map[string]V, hidden V) map[string]V {
	out := make(map[string]V, len(headers))
	for name, value := range headers {
		if !harmless(name) {
			value = hidden
		}
		out[name] = value
	}
	return out
}

func veilUnseen(who Identity, list []doctor.Unchecked) []doctor.Unchecked {
	if who.Role.May(RoleOperator) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Why = untold
	}
	return list
}

// veilEntry hides from viewers the error of an audit entry.
func veilEntry(who Identity, e *Entry) {
	if e.Error != "" && !who.Role.May(RoleOperator) {
		e.Error = Hidden
	}
}

// untold is shown to viewers instead of an error from a driver or a broker.
const untold = "the log of this process has the reason"

// Told returns the text of err as it may be shown to the given caller. Errors of drivers and brokers may name users and
// addresses, so only operators see them in full.
func Told(who Identity, err error) string {
	if who.Role.May(RoleOperator) || ours(err) && !errors.Is(err, ErrBroker) {
		return err.Error()
	}
	if p, ok := errors.AsType[*inspect.PeekError](err); ok && p.Err == nil {
		return err.Error()
	}
	if errors.Is(err, ErrNoQueue) { // the rest of the text would add nothing
		return ErrNoQueue.Error()
	}
	for _, known := range []error{ErrBroker, ErrRefused, schedule.ErrNoTable, schedule.ErrDenied, schedule.ErrPooler, schedule.ErrReadOnly, inspect.ErrPeek} {
		if errors.Is(err, known) {
			return known.Error() + "; " + untold
		}
	}
	if DatabaseAway(err) {
		return ErrDatabase.Error() + "; " + untold
	}
	return untold
}
