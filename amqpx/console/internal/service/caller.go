package service

import "context"

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
