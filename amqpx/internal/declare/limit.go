package declare

import (
	"context"
	"errors"
	"regexp"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// currentLimit finds the delivery limit of an existing queue in the broker's refusal of a different limit.
var currentLimit = regexp.MustCompile(`'x-delivery-limit' for queue .* but current is [^']*'(\d+)'`)

// isClassic matches the broker's refusal to declare an existing classic queue as a quorum queue.
var isClassic = regexp.MustCompile(`'x-queue-type' for queue .* but current is [^']*'classic'`)

// Limit is what a consumer can learn about the delivery limit of its queue.
type Limit struct {
	Deliveries int64 // the limit that the queue's arguments set, if Known
	Known      bool
	// Classic is true if the queue is certainly a classic queue, which has no limit.
	Classic bool
}

// DeliveryLimit returns the delivery limit that the arguments of a consumer's queue set. The limit is unknown if they
// set none, or if the broker does not reveal it. AMQP has no request for a queue's arguments, but when the broker
// refuses a declaration with a different limit, its reason contains the current limit. A limit set by a policy is not
// found. The type is read from the refusal of a declaration as a quorum queue. A successful declaration as a classic
// queue would not prove the type, because a broker can be configured to accept it for a quorum queue.
func (c *Declarer) DeliveryLimit(ctx context.Context, s *Session, queue string) (limit Limit) {
	d := declaration{c: c, dest: topology.Destination{Queue: queue}}
	if c.cfg.OnlyLook || d.foreign() || d.dest.ServerNamed() {
		return Limit{}
	}
	_ = c.Do(ctx, s, func(conn *amqp.Connection) error {
		ch := &wire.Channel{Conn: conn}
		defer ch.Close()
		declare := func(args amqp.Table) error {
			return ch.Do(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(queue, true, false, false, false, args)
				return err
			})
		}
		own := c.cfg.Configured(queue).Queues(c.cfg.QueueType)
		args := own[len(own)-1].Table()
		switch err := declare(args); {
		case wire.IsCode(err, amqp.PreconditionFailed):
			args = amqp.Table{} // the queue was declared by another program
		case err != nil || args[argument.QueueType] != string(topology.Classic):
			return err // without an error, it is this client's own quorum queue, whose limit no message reaches
		}
		args[argument.QueueType], args[argument.DeliveryLimit] = string(topology.Quorum), "unknown"
		// The broker accepts any limit for a new quorum queue, but refuses an argument that only streams have. So a queue
		// that was deleted in the meantime is not created.
		args["x-max-age"] = "1s"
		if ae, ok := errors.AsType[*amqp.Error](declare(args)); ok {
			limit.Classic = isClassic.MatchString(ae.Reason)
			if m := currentLimit.FindStringSubmatch(ae.Reason); m != nil {
				var err error
				limit.Deliveries, err = strconv.ParseInt(m[1], 10, 64)
				limit.Known = err == nil
			}
		}
		return nil
	})
	return limit
}
