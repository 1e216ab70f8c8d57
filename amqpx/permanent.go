package amqpx

import (
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// permanent tells whether connecting again with the same configuration is
// pointless: refused credentials or virtual host, an untrusted certificate, a
// topology that conflicts with what the broker has, or a broker that does not delay
// as the strategy needs it.
func permanent(err error) bool {
	if n, ok := errors.AsType[*nodesError](err); ok {
		return n.permanent()
	}
	if isPassing(err) {
		return false
	}
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		switch ae.Code {
		case amqp.AccessRefused, amqp.NotAllowed, amqp.PreconditionFailed, amqp.InvalidPath:
			return true
		}
	}
	return isFinalDial(err) || isConflict(err) || errors.Is(err, errNotApplied) || isUnproven(err)
}

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
var errNotApplied = errors.New("this client may not declare (DeclareNothing): run rabbitdelay apply with the same settings first")
