package consume

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Each time a delivered message is requeued because its consumer was paused or stopped, or lost its connection, it
// comes closer to the queue's delivery limit, although no handler has seen it. On RabbitMQ 4 a queue that does not set
// a limit drops a message when it is requeued for the 21st time, and a client cannot query a queue's limit. Therefore
// the consumer renews such a message: it publishes a copy directly to the queue, and acknowledges the received message
// when the copy is confirmed. The broker counts the copy's deliveries from zero. The copy has the same id, body,
// properties and headers, and the information that its next consumer needs to decide when it may be handled
// (header.Expired).
//
// Before its due time, a message is renewed as soon as it has been requeued once, so that holding it costs at most one
// requeue. No handler can have received it. It stays buffered until it is renewed, and if its due time arrives first,
// it is handled. A consumer that leaves its queue renews the messages that it holds before it returns them, if the
// broker would count the return.
//
// After a message's due time, it may have been delivered to handlers that crashed the process, and the queue's limit
// may exist to stop exactly such messages. Such a message is renewed only after it has been requeued more often than
// most limits that users set, and its copy carries the count of deliveries (header.Delivered), which is limited to
// MaxDeliveries.

// maxReturns is the number of times that a message may be requeued after its due time before it is renewed. RabbitMQ's
// default delivery limit, since 4.0, is 20.
const maxReturns = 15

// renewDelay is the delay of a copy that could otherwise be handled as soon as it arrives. If the strategy does not
// support this delay, the next longer one is used, unless it exceeds maxRenewDelay.
const (
	renewDelay    = time.Second
	maxRenewDelay = 10 * time.Second
)

// maxRenewals bounds the concurrent renewals of a subscription. When its connection is lost, at most this many
// messages are duplicated.
const maxRenewals = wire.Window

// isWorn reports whether a message must be renewed. The parameter w is the decision about its start time.
func (d *Delivery) isWorn(w duecheck.Decision) bool {
	_, unreadable := d.Headers[header.Unreadable]
	switch {
	case unreadable || w.Return && w.Wait == 0: // such a message is replaced immediately anyway
		return false
	case w.Wait > 0:
		return d.returns > 0
	}
	return d.returns >= maxReturns && d.deliveries <= header.MaxDeliveries
}

// countsReturns reports whether the broker counts every return of a message towards its queue's delivery limit. Since
// 4.3 it only counts returns by a lost channel.
func (s *subscription) countsReturns() bool {
	v := wire.Version(wire.Broker(s.sess.Conn))
	return v.Known() && v.Before(4, 3, 0)
}

// mustWear reports whether the subscription's held messages must be renewed before they are returned to the queue. A
// classic queue has no delivery limit, so the copies would be published for nothing. If the queue was deleted and
// created again as a quorum queue since its type was read, the broker counts one return of each held message. No
// message is lost by that, because a message that has returned once is renewed as soon as it is delivered again.
func (k *Consumer) mustWear(s *subscription) bool { return s.countsReturns() && !k.classic.Load() }

// safeLimit is the lowest delivery limit with which a held message is safe on a broker that counts every return. With a
// lower limit, a message is lost if the connection is lost again shortly after the message has returned.
const safeLimit = 3

// checkLimit finds out whether the queue is a classic queue, and logs a warning if its delivery limit is too low for
// held messages.
func (k *Consumer) checkLimit(s *subscription) {
	limit := k.all.cfg.Declarer.DeliveryLimit(k.ending, s.sess.Session, k.set.Queue)
	k.classic.Store(limit.Classic)
	if limit.Known && limit.Deliveries < safeLimit {
		k.log.Warn("the queue has a low delivery limit: the broker drops a message, or dead-letters it, if this consumer holds it until its due time and loses its connection repeatedly; "+
			"declare the queue with a higher x-delivery-limit, upgrade to RabbitMQ 4.3, or send without a lead", zap.Int64("limit", limit.Deliveries), zap.Int64("expected_at_least", safeLimit))
	}
}

// renewals tracks the renewals of a subscription that have not finished.
type renewals struct {
	ctx   context.Context
	stop  context.CancelFunc // abandons unfinished renewals: their messages are requeued unchanged
	count int
	ended chan *Delivery // receives nil for each renewed message, and the delivery of each failed renewal
}

func newRenewals(live context.Context) renewals {
	ctx, stop := context.WithCancel(live)
	return renewals{ctx: ctx, stop: stop, ended: make(chan *Delivery)}
}

// end records the result of a renewal. A message that could not be renewed is buffered again unchanged.
func (r *renewals) end(d *Delivery, b *buffer, now time.Time) {
	r.count--
	if d != nil {
		b.add(d, now)
	}
}

// renew starts to renew the messages that need it, up to maxRenewals at a time.
func (s *subscription) renew(k *Consumer) {
	for s.renewals.count < maxRenewals && s.renewals.ctx.Err() == nil {
		d := s.buffer.nextWorn()
		if d == nil {
			return
		}
		s.renewals.count++
		go func() { // not counted as work, because a stopping consumer waits only briefly for renewals
			left := d
			if k.renewed(s.renewals.ctx, d) {
				left = nil
			}
			select {
			case s.renewals.ended <- left:
			case <-s.live.Done():
			}
		}()
	}
}

// renewed tries once to replace a message with a copy, and reports whether it succeeded.
func (k *Consumer) renewed(ctx context.Context, d *Delivery) bool {
	k.settling.Add(1)
	defer k.settling.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, replaceTimeout)
	defer cancel()
	err := k.all.cfg.Publisher.Pass(ctx, k.copyOf(d))
	switch {
	case err != nil && ctx.Err() == nil:
		k.stuck.Warn(k.log, "renew", "could not replace a redelivered message by a copy with a new delivery count; the message is held, and further redeliveries count towards the delivery limit of its queue", zap.String("id", d.ID), zap.Int64("returns", d.returns), zap.Error(err))
		return false
	case err != nil:
		return false
	}
	k.log.Debug("renewed a message that has returned to its queue", zap.String("id", d.ID), zap.Int64("returns", d.returns))
	d.ack(Returned)
	return true
}

// copyOf returns a message that the next consumer treats like the received one.
func (k *Consumer) copyOf(d *Delivery) inner.Copy {
	early := d.check.early || d.check.at.After(time.Now())
	m := d.republished()
	m.To, m.DeliverAt, m.Sent = k.queue(), d.DueAt, d.Raw.Timestamp
	for name, v := range d.Raw.Headers {
		if strings.HasPrefix(name, header.OwnPrefix) {
			m.Own[name] = v
		}
	}
	header.Origin(m.Own, d.Exchange, d.RoutingKey)
	d.Carry(m.Own)
	if at := arrivalOf(&d.Raw).Expired; !at.IsZero() {
		m.Own[header.Expired] = at.UnixMilli()
	}
	before := d.deliveries
	if early {
		before -= d.returns // the message was only held in each of these deliveries
	}
	m.Own[header.Delivered] = before
	m.Route = k.routeOfCopy(early)
	m.Straight = m.Route == nil
	return m
}

// routeOfCopy returns the route of a copy, or nil if it is published directly to the queue. A copy that could be
// handled as soon as it arrives is delayed a little if the strategy can do that, because the handler of the copy may
// crash the process, and the received message must be acknowledged before that.
func (k *Consumer) routeOfCopy(early bool) *topology.Route {
	if early {
		return nil
	}
	// A strategy with long steps may round the delay up by too much.
	route, err := k.all.cfg.Strategy.Route(k.queue(), k.possible(renewDelay), 0)
	if err != nil || route.Delay > maxRenewDelay {
		return nil
	}
	return &route
}
