package amqpx

import (
	"fmt"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// normalPriority is the highest priority that does not overtake others in a quorum
// queue.
const normalPriority = 4

// priorityProblem refuses a priority with which a message would hold up all others
// in its delay queue. From RabbitMQ 4.0 on a quorum queue hands out messages with
// a priority above 4 first, and before 4.3 it expires only the one that is next: it
// looks at no other until that one is due, and then at those behind it that have the
// same priority. Before 4.0 it takes no notice of priorities. A version that cannot
// be read is refused too: a priority can be lowered, what is held up cannot be
// helped.
//
// broker is product and version, such as "RabbitMQ 4.0.5". Messages that pass
// through no delay queue need not be asked about.
func priorityProblem(broker string, s Strategy, priority uint8) error {
	if priority <= normalPriority {
		return nil
	}
	if v := wire.Version(broker); v.Before(4, 0, 0) || v.AtLeast(4, 3, 0) {
		return nil
	}
	quorum := func(q topology.Queue) bool { return q.IsDelay() && q.Type != topology.Classic }
	if !slices.ContainsFunc(s.Topology().Queues, quorum) {
		return nil
	}
	return &MessageError{"Priority", fmt.Sprintf("%d; expected 0 to %d: the delay queues are quorum queues, and on %s a message of a higher priority would hold up all others in its queue. Lower it, delay through classic queues, or upgrade the broker to 4.3",
		priority, normalPriority, broker)}
}

// checkPriority asks whether a message may go its way with its priority. That of
// one which a consumer sends on is lowered: its sender is not here to be told.
func (c *Client) checkPriority(sess *session, p *prepared, route *topology.Route) error {
	if p.way != delayed || route.Hops == 0 {
		return nil
	}
	err := priorityProblem(sess.Broker, c.strategy, p.pub.Priority)
	if err != nil && p.lowers {
		p.pub.Priority, err = normalPriority, nil
	}
	return err
}
