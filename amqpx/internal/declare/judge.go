package declare

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// judge decides what the error of an attempt means for its destination.
func judge(dest topology.Destination, err error, before failure) failure {
	now := failure{err: err, count: before.count + 1, alone: before.alone, refused: wire.IsCode(err, amqp.AccessRefused)}
	if wire.EndsConnection(err) {
		// Another destination's declaration on the same connection may have caused the error.
		now.ends, now.alone = before.ends+1, true
	}
	if errors.Is(err, errNoAnswer) {
		now.alone = true
	}
	stands := errorStands
	if channels.Limited(err) {
		now.err = &passingError{fmt.Errorf("destination %s: %w", dest.String(), channels.Advised(err))}
		stands = min(firstErrorStands<<min(before.count, 10), errorStands)
	} else if reason := whyFinal(err, now.ends); reason != "" {
		now.err = fmt.Errorf("%w: %w", &topology.DestinationError{Destination: dest, Reason: reason}, err)
	} else if !errors.Is(err, topology.ErrDestination) {
		now.err = &passingError{fmt.Errorf("destination %s: %w", dest.String(), err)}
		stands = min(firstErrorStands<<min(before.count, 10), errorStands)
	}
	now.until = time.Now().Add(stands)
	return now
}

// whyFinal returns why a destination cannot be used and what to do about it. It returns an empty string for an error
// that may be temporary.
func whyFinal(err error, ends int) string {
	ae, ok := errors.AsType[*amqp.Error](err)
	if !ok || errors.Is(err, topology.ErrDestination) {
		return ""
	}
	switch {
	case strings.Contains(ae.Reason, "timeout"), strings.Contains(ae.Reason, "timed out"):
		// The broker reports this when its metadata store or a queue's leader does not answer.
		return ""
	case ae.Code == amqp.ResourceLocked:
		return "is exclusive to another connection, so this client cannot bind it; send to a queue that is not exclusive, or let the queue's owner declare it without exclusive"
	case ae.Code == amqp.AccessRefused && isReserved(ae):
		return "has a name that the broker reserves; choose another name"
	case ae.Code == amqp.AccessRefused:
		return "cannot be declared and bound by this user; grant the user the permissions listed in docs/permissions.md, or run rabbitdelay apply with another user and set DeclareNothing"
	case ae.Code == amqp.PreconditionFailed:
		return "is refused by the broker, for example because of a limit of the virtual host; fix the cause that the broker reports, or declare the queue yourself"
	case channels.IsNameHeld(err) && ends > maxEnds:
		return "cannot be declared: " + channels.NameHeldAdvice
	case wire.EndsConnection(err) && ends > maxEnds:
		return "makes the broker close the connection each time; see the broker's log"
	}
	return ""
}

// isReserved reports whether access was refused only because of the name.
func isReserved(e *amqp.Error) bool { return strings.Contains(e.Reason, "reserved prefix") }

// saysNothing reports whether an error contains no information about the destination.
func saysNothing(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return !errors.Is(err, topology.ErrDestination) && (!ok || !e.Server || wire.EndsConnection(err) || channels.Limited(err) || e.Code == amqp.ConnectionForced)
}

// accessStands is how long access must be refused before it is treated as permanent, because a broker that is starting
// refuses its users for a moment.
const accessStands = 2 * time.Second

// believed runs f, and repeats it while access is refused, for up to accessStands. If before is true, access was
// already refused in the last attempt, and f runs only once.
func believed(ctx context.Context, before bool, f func() error) error {
	began := time.Now()
	for {
		err := f()
		ae, _ := errors.AsType[*amqp.Error](err)
		if !wire.IsCode(err, amqp.AccessRefused) || isReserved(ae) || before || time.Since(began) > accessStands {
			return err
		}
		if wait.For(ctx, accessStands/8) != nil {
			return err
		}
	}
}

// passingError is an error from the broker that may be temporary, even if its code is final in other contexts.
type passingError struct{ err error }

func (e *passingError) Error() string { return e.err.Error() }
func (e *passingError) Unwrap() error { return e.err }

// Passes reports whether err may be temporary, even if its code is final in other contexts.
func Passes(err error) bool {
	_, ok := errors.AsType[*passingError](err)
	return ok
}

// errNotApplied is returned if a client that declares nothing does not find the strategy's exchanges. It is not a
// *topology.DestinationError, because every destination is affected.
var errNotApplied = errors.New("this client is not allowed to declare anything (DeclareNothing); first run rabbitdelay apply with the same settings")

var errNoAnswer = errors.New("the broker did not answer")

// Final reports whether declaring again is pointless. That is the case if the broker has a different object with one of
// the names, if the layout was not applied, if the clocks are too far apart, or if the broker does not delay as the
// strategy requires.
func Final(err error) bool {
	if _, conflict := errors.AsType[*topology.ConflictError](err); conflict {
		return true
	}
	_, clock := errors.AsType[*live.ClockError](err)
	return clock || errors.Is(err, live.ErrInstantsIgnored) || errors.Is(err, errNotApplied)
}
