package wire

import (
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// State is the state of a Link.
type State string

// The states of a Link. A Link begins as StateConnecting and stays there until its first connection. After that it is
// in StateConnected or StateBlocked while there is a connection, and otherwise in StateDisconnected.
const (
	StateConnecting   State = "connecting"
	StateConnected    State = "connected"
	StateBlocked      State = "blocked" // connected, but a memory or disk alarm stops publishes
	StateDisconnected State = "disconnected"
	StateClosed       State = "closed"

	StateUnblocked State = "unblocked" // only in an Event: the Link is connected again
)

// Errors that are returned to callers that wait for a Link.
var (
	ErrClosed  = errors.New("the client is closed")
	ErrBlocked = errors.New("the broker blocks publishers")
)

// Status is the state of a Link at one moment. The zero value is the status of a Link that was not started.
type Status struct {
	State    State
	Since    time.Time // when State began
	Sessions uint64    // number of connections made so far
	Session  *Session  // set in StateConnected and StateBlocked; nil while the Link closes
	// Alarm is the reason why the broker blocks publishers. It may be set before StateBlocked, while a new connection
	// is set up.
	Alarm string
	// Err is the reason why there is no connection, if it is known.
	Err error
	// Refused is the time of the first of the latest consecutive attempts in which the broker refused access. It is
	// zero if the last attempt was not refused.
	Refused time.Time
}

// change is an event that changes the status of a Link.
type change interface {
	apply(s *Status, now time.Time)
}

type (
	started  struct{}                   // the Link starts connecting
	ready    struct{ session *Session } // a connection was made and set up
	alarm    struct{ reason string }    // the broker blocks publishing
	allClear struct{}                   // the broker no longer blocks publishing
	lost     struct{ err error }        // the connection was lost, or could not be made
	closing  struct{}                   // the connection is being closed, and callers stop waiting
	closed   struct{}
)

// step returns the status after a change. All changes of the status are made here.
func (s Status) step(c change, now time.Time) Status {
	was := s.State
	c.apply(&s, now)
	if s.State != was {
		s.Since = now
	}
	return s
}

func (started) apply(s *Status, _ time.Time) { s.State = StateConnecting }

func (c ready) apply(s *Status, _ time.Time) {
	s.State, s.Session, s.Err = StateConnected, c.session, nil
	s.Sessions++
	if s.Alarm != "" {
		s.State = StateBlocked
	}
}

func (c alarm) apply(s *Status, _ time.Time) {
	s.Alarm = c.reason
	if s.State == StateConnected {
		s.State = StateBlocked
	}
}

func (allClear) apply(s *Status, _ time.Time) {
	s.Alarm = ""
	if s.State == StateBlocked {
		s.State = StateConnected
	}
}

func (c lost) apply(s *Status, now time.Time) {
	if s.Sessions > 0 {
		s.State = StateDisconnected
	}
	s.Session, s.Alarm, s.Err = nil, "", c.err
	switch { // keep the time of the first of several consecutive refusals
	case !IsCode(c.err, amqp.AccessRefused) && !IsCode(c.err, amqp.NotAllowed):
		s.Refused = time.Time{}
	case s.Refused.IsZero():
		s.Refused = now
	}
}

func (closing) apply(s *Status, _ time.Time) { s.Session, s.Err = nil, ErrClosed }

func (closed) apply(s *Status, _ time.Time) {
	*s = Status{State: StateClosed, Sessions: s.Sessions, Since: s.Since, Err: ErrClosed}
}

// IsCode reports whether err is an *amqp091.Error with the given reply code.
func IsCode(err error, code int) bool {
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && ae.Code == code
}

// EndsConnection reports whether the broker closed the connection because of a request. It returns false for a limit on
// channels, which also closes the connection but is not caused by a particular request.
func EndsConnection(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && !channels.Limited(err) && e.Server && slices.Contains([]int{
		amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError, amqp.UnexpectedFrame,
		amqp.ResourceError, amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError,
	}, e.Code)
}
