package topology

import (
	"errors"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
)

// Reasons why a topology is not applied to a broker.
var (
	// ErrConflict is wrapped by every *ConflictError.
	ErrConflict = errors.New("exists with different arguments")
	// ErrPolicy means that policies on the broker would break delays or lose dead letters. The error's text lists them.
	ErrPolicy = errors.New("policies would break delays or lose dead letters")
	// ErrQuota means that the broker allows fewer queues than the topology contains. The error's text contains both
	// numbers, and says what to do.
	ErrQuota = errors.New("the broker's limit on queues is too low")
)

// ConflictError reports an object that exists on the broker with a different argument. A broker cannot change an
// existing object.
type ConflictError struct {
	Kind     Kind
	Name     string
	Argument string
	Want     any // the value in the topology; nil if it has none
	Have     any // the broker's value, or what its error says about it; nil if it has none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s %q exists with a different %s: wanted %s, found %s; give the new object another name, or empty and delete the old one",
		e.Kind, e.Name, e.Argument, argument.Format(e.Want), argument.Format(e.Have))
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() error { return ErrConflict }
