package amqpx

import (
	"errors"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func isFinalDial(err error) bool {
	e, ok := errors.AsType[*DialError](err)
	return ok && e.Final
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*topology.ConflictError](err)
	return ok
}

// errNotApplied says that a client that may not declare finds no layout. It is no
// *topology.DestinationError: no destination would do.
var errNotApplied = errors.New("this client may not declare (DeclareNothing); run rabbitdelay apply with the same settings first")
