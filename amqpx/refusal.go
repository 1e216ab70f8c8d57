package amqpx

import (
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// refusalStands is for how long the broker must refuse, each time, before that is
// believed: one that is starting or stopping refuses access, too, while it does not
// know its users and virtual hosts.
const refusalStands = 2 * time.Second

// refusals tell a refusal that stands from one that passes.
type refusals struct{ since time.Time } // since when every attempt was refused; zero: none

// stand takes the outcome of one more attempt.
func (r *refusals) stand(err error) bool {
	switch {
	case err == nil || !permanent(err) && !errors.Is(err, topology.ErrDestination):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	default:
		return time.Since(r.since) > refusalStands
	}
	return false
}
