package service

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Role is what a caller may do.
type Role string

// An operator may do all that a viewer may.
const (
	RoleViewer   Role = "viewer"   // sees everything but bodies and most values of headers
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

// Caller is who makes a request, with what a page needs to answer it. The handler in
// front of pages and API puts it into the request's context.
type Caller struct {
	Identity

	// FormToken goes into every form, in the field FormTokenField.
	FormToken string
	// Prefix comes before the path of every link and form: empty, or such as
	// /rabbitdelay.
	Prefix string
	// Session is set for callers who logged in by the form, and so can log out.
	Session bool
}

// FormTokenField is the hidden field of every form.
const FormTokenField = "token"

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller in ctx. Without one it returns the zero value, which may do
// nothing.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Hidden replaces a value that only an operator may see.
const Hidden = "(hidden)"

// harmless reports whether a header holds nothing confidential.
func harmless(name string) bool {
	name = strings.ToLower(name)
	return name == "traceparent" || strings.HasPrefix(name, "rabbitdelay-") || strings.HasPrefix(name, "x-death") || strings.HasPrefix(name, "x-first-death")
}

// veilTask hides from viewers the body and the values of headers.
func veilTask(who Identity, t *schedule.Task) {
	if !who.Role.May(RoleOperator) {
		t.Body, t.Headers = nil, veilHeaders(t.Headers, Hidden)
	}
}

// veilDead does the same for messages.
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

func veilUnseen(who Identity, list []doctor.Unseen) []doctor.Unseen {
	if who.Role.May(RoleOperator) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Why = untold
	}
	return list
}

// veilEntry hides from viewers why something was not done.
func veilEntry(who Identity, e *Entry) {
	if e.Error != "" && !who.Role.May(RoleOperator) {
		e.Error = Hidden
	}
}

// untold replaces what a driver or a broker says, for viewers.
const untold = "the log of this process says why"

// Told returns the text of err for who. The words of drivers and brokers may name users
// and addresses, so only operators get them.
func Told(who Identity, err error) string {
	if who.Role.May(RoleOperator) || ours(err) && !errors.Is(err, ErrBroker) {
		return err.Error()
	}
	if p, ok := errors.AsType[*inspect.PeekError](err); ok && p.Err == nil {
		return err.Error()
	}
	if errors.Is(err, ErrNoQueue) { // which says it all
		return ErrNoQueue.Error()
	}
	for _, known := range []error{ErrBroker, ErrRefused, schedule.ErrNoTable, schedule.ErrDenied, inspect.ErrPeek} {
		if errors.Is(err, known) {
			return known.Error() + "; " + untold
		}
	}
	if DatabaseAway(err) {
		return ErrDatabase.Error() + "; " + untold
	}
	return untold
}
