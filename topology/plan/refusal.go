package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// ErrConflict is wrapped by every *ConflictError.
var ErrConflict = errors.New("exists with other arguments")

// ConflictError reports an object that exists on the broker and differs in an
// argument. Brokers do not change objects in place.
type ConflictError struct {
	Kind     topology.Kind
	Name     string
	Argument string
	Want     any // nil for absent
	Have     any // nil for absent, or the broker's text of it
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s %q exists with a different %s: wanted %s, found %s; give the new one another name, or empty and delete the old one",
		e.Kind, e.Name, e.Argument, argument.Format(e.Want), argument.Format(e.Have))
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// ErrPolicy is wrapped by every *PolicyError.
var ErrPolicy = errors.New("policies break delays or lose dead letters")

// PolicyError lists the policies that would break what was to be declared.
type PolicyError struct{ Warnings []Warning }

func (e *PolicyError) Error() string {
	return "refused, because policies would break delays or lose dead letters: " + strings.Join(groupWarnings(e.Warnings), "; ")
}

// Unwrap makes errors.Is(err, ErrPolicy) true.
func (e *PolicyError) Unwrap() error { return ErrPolicy }

// Refusal returns why Apply would not create the missing objects, or nil: a
// joined *ConflictError for each different argument, else a *PolicyError unless
// forced.
func (p Plan) Refusal(forced bool) error {
	var errs []error
	for _, s := range p.Conflicts() {
		for _, m := range s.Mismatches {
			errs = append(errs, &ConflictError{Kind: s.Kind, Name: s.Name, Argument: m.Argument, Want: m.Want, Have: m.Have})
		}
	}
	if grave := p.Grave(); len(errs) == 0 && len(grave) > 0 && !forced {
		return &PolicyError{Warnings: grave}
	}
	return errors.Join(errs...)
}

// Grave returns the warnings for which Apply refuses.
func (p Plan) Grave() []Warning {
	return slices.DeleteFunc(slices.Clone(p.Warnings), func(w Warning) bool { return w.Mild })
}
