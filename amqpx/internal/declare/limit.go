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

// DeliveryLimit returns the delivery limit that the arguments of a consumer's queue set. It returns false if they set
// none, or if the broker does not reveal it. AMQP has no request for a queue's arguments, but when the broker refuses a
// declaration with a different limit, its reason contains the current limit. A limit set by a policy is not found.
func (c *Declarer) DeliveryLimit(ctx context.Context, s *Session, queue string) (limit int64, known bool) {
	d := declaration{c: c, dest: topology.Destination{Queue: queue}}
	if c.cfg.OnlyLook || d.foreign() || d.dest.ServerNamed() {
		return 0, false
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
		if err := declare(own[len(own)-1].Table()); !wire.IsCode(err, amqp.PreconditionFailed) {
			return err // it is this client's queue, which has no limit that a message reaches
		}
		// The value is invalid, so a queue that was deleted in the meantime is not created.
		err := declare(amqp.Table{argument.QueueType: string(topology.Quorum), argument.DeliveryLimit: "unknown"})
		if ae, ok := errors.AsType[*amqp.Error](err); ok {
			if m := currentLimit.FindStringSubmatch(ae.Reason); m != nil {
				limit, err = strconv.ParseInt(m[1], 10, 64)
				known = err == nil
			}
		}
		return nil
	})
	return limit, known
}
