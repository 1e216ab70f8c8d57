package inspect

import (
	"cmp"
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// walkPortion is the maximum number of messages that one consumer of Walk holds.
const walkPortion = 1000

// Walk reads a whole queue, for example to count its messages by error. It passes every message that was ready when it
// began to the function each, with the number of these messages as the second argument. It holds every message until it
// has seen the last one, and then puts all of them back. They keep their order, except in a quorum queue before
// RabbitMQ 4.0. Walk keeps no message in memory. The options' Limit does not apply.
//
// It has the same side effects as Peek, on all messages of the queue. It neither acknowledges messages nor uses up a
// delivery limit. For a queue in which reading would use up the limit, it returns a *PeekError. Afterwards the messages
// have the redelivered flag, and RabbitMQ before 4.3 has counted a delivery in x-delivery-count. Until the messages are
// put back, consumers do not get them, and the broker tracks each message that is held, which costs it a few hundred
// bytes of memory. Two concurrent calls share the messages, and each sees only part of them.
//
// The result has no Messages. Its More is the number of messages that were ready and that Walk did not see, because
// other consumers hold them or have removed them.
//
// When ctx ends, all messages are put back. If the process is killed or the connection is lost before that, the broker
// puts the messages back and counts a delivery, which RabbitMQ 4.0 and later compares with a delivery limit. The same
// happens if the call takes longer than the broker's consumer timeout (30 min). Errors are the same as for Peek.
func Walk(ctx context.Context, conn *amqp.Connection, queue string, o PeekOptions, each func(l DeadLetter, total int)) (Peeked, error) {
	if err := usable(conn, "read", queue); err != nil {
		return Peeked{}, err
	}
	o.Prefix = cmp.Or(o.Prefix, topology.DefaultPrefix)
	if err := mayPeek(ctx, conn, queue, o); err != nil {
		return Peeked{}, err
	}
	p := Peeked{Queue: queue}
	total, seen, err := walk(ctx, conn, queue, o.Prefix, each)
	if err != nil {
		return Peeked{}, fmt.Errorf("read %s: %w", queue, err)
	}
	if p.More = total - seen; p.More > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("only %d of %d messages were examined: other consumers hold the rest, or have removed them", seen, total))
	}
	if seen > 0 && wire.Version(wire.Broker(conn)).Before(4, 0, 0) {
		p.Notes = append(p.Notes, "before RabbitMQ 4.0, a quorum queue puts the messages that were read at its end, possibly in another order")
	}
	return p, nil
}

// walk takes all messages and puts them back. It returns how many were ready, and how many it has seen.
func walk(ctx context.Context, conn *amqp.Connection, queue, prefix string, each func(l DeadLetter, total int)) (total, seen int, err error) {
	forced, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	t := taker{queue: queue, forced: forced}
	q, err := countReady(ctx, conn, queue)
	if err != nil {
		return 0, 0, err
	}
	total = q.Messages
	if t.ch, err = wait.Value(ctx, conn.Channel); err != nil {
		return total, 0, err
	}
	defer wire.CloseChannel(forced, t.ch) // waits only briefly if the broker does not answer
	p := portions{most: walkPortion}
	for err == nil && seen < total {
		var list []amqp.Delivery
		list, err = t.receive(ctx, min(p.next(), total-seen))
		for i := range list {
			p.saw(&list[i])
			each(ReadDeadLetter(list[i], queue, prefix), total)
		}
		if seen += len(list); len(list) == 0 {
			break
		}
	}
	if seen == 0 || t.ch.IsClosed() {
		return total, seen, err
	}
	return total, seen, cmp.Or(err, t.putBack())
}
