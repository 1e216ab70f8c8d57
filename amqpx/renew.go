package amqpx

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Each time a delivered message is requeued because its consumer paused, ended or lost its connection, it comes
// closer to the queue's delivery limit, although no handler has seen it. On RabbitMQ 4 a queue that does not set a
// limit drops a message when it is requeued for the 21st time, and a client cannot find out a queue's limit.
// Therefore the consumer renews such a message: it publishes a copy directly to the queue, and acknowledges the
// received message when the copy is confirmed. The broker counts the copy's deliveries from zero. The copy has the
// same id, body, properties and headers, and the information that its next consumer needs to decide when it may be
// handled (HeaderExpired).
//
// Before its due time, a message is renewed as soon as it has been requeued once, so that holding it costs at most
// one requeue. No handler can have received it. It stays buffered until it is renewed, and if its due time comes
// first, it is handled. After its due time, its deliveries may have gone to handlers that crashed the process, and
// the queue's limit may exist to stop exactly that. Such a message is renewed only when it has been requeued more
// often than most limits that users set, and its copy carries the count of deliveries (HeaderDeliveries), which
// ends at MaxDeliveries.

// maxReturns is how often a message may be requeued before it is renewed after its due time. RabbitMQ's default
// delivery limit, since 4.0, is 20.
const maxReturns = 15

// renewDelay is the delay of a copy that could otherwise be handled as soon as it arrives. If the strategy does
// not have this delay, the next longer one is used, unless it exceeds maxRenewDelay.
const (
	renewDelay    = time.Second
	maxRenewDelay = 10 * time.Second
)

// maxRenewals bounds the concurrent renewals of a subscription. When its connection is lost, at most this many
// messages are duplicated.
const maxRenewals = wire.Window

// isWorn reports whether a message must be renewed.
func (d *Delivery) isWorn(w lasthop.Decision) bool {
	_, unreadable := d.Headers[HeaderUnreadable]
	switch {
	case unreadable || w.Return && w.Wait == 0: // it is replaced immediately anyway
		return false
	case w.Wait > 0:
		return d.returns > 0
	}
	return d.returns >= maxReturns && d.deliveries <= header.MaxDeliveries
}

// renewals tracks the renewals of a subscription that have not finished.
type renewals struct {
	ctx   context.Context
	stop  context.CancelFunc // abandons unfinished renewals: their messages are requeued unchanged
	count int
	ended chan *job // receives nil for each renewed message, and the job of each failed renewal
}

func newRenewals(live context.Context) renewals {
	ctx, stop := context.WithCancel(live)
	return renewals{ctx: ctx, stop: stop, ended: make(chan *job)}
}

// end records the result of a renewal. A message that could not be renewed is buffered again unchanged.
func (r *renewals) end(j *job, h *holding, now time.Time) {
	r.count--
	if j != nil {
		h.add(j, now)
	}
}

// renew starts to renew the messages that need it, up to maxRenewals at a time.
func (s *subscription) renew(k *consumer) {
	for s.renewals.count < maxRenewals && s.renewals.ctx.Err() == nil {
		j := s.held.nextWorn()
		if j == nil {
			return
		}
		s.renewals.count++
		go func() { // no handler waits for this, and the end of the consumer waits only briefly
			left := j
			if k.renewed(s.renewals.ctx, j) {
				left = nil
			}
			select {
			case s.renewals.ended <- left:
			case <-s.live.Done():
			}
		}()
	}
}

// renewed tries once to replace a message by a copy, and reports whether it succeeded.
func (k *consumer) renewed(ctx context.Context, j *job) bool {
	k.settling.Add(1)
	defer k.settling.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	early := j.again || j.at.After(time.Now())
	err := k.c.sendOne(ctx, k.copyOf(j, early), k.wayOfCopy(early))
	switch {
	case err != nil && ctx.Err() == nil:
		k.stuck.Warn(k.log, "renew", "could not renew a message that has come back to its queue; it is held as it is", zap.String("id", j.d.ID), zap.Int64("returns", j.d.returns), zap.Error(err))
		return false
	case err != nil:
		return false
	}
	k.log.Debug("renewed", zap.String("id", j.d.ID), zap.Int64("returns", j.d.returns))
	j.ack(OutcomeReturned)
	return true
}

// wayOfCopy returns the route of a copy. A copy that could be handled as soon as it arrives is delayed a little if
// the strategy can do that, because the received message must be acknowledged before the copy is handled, whose
// handler may crash the process.
func (k *consumer) wayOfCopy(early bool) *topology.Route {
	queue := topology.Destination{Queue: k.queue}
	if !early {
		// A strategy with long steps rounds the delay up.
		if route, err := k.c.strategy.Route(queue, k.possible(renewDelay), 0); err == nil && route.Delay <= maxRenewDelay {
			return &route
		}
	}
	return straightTo(queue)
}

// copyOf returns a message that the next consumer treats like the received one.
func (k *consumer) copyOf(j *job, early bool) Message {
	d := j.d
	m := d.message()
	m.Queue, m.Attempt, m.DeliverAt, m.sent, m.own = k.queue, d.Attempt, d.DueAt, j.raw.Timestamp, amqp.Table{}
	for name, v := range j.raw.Headers {
		if strings.HasPrefix(name, header.OwnPrefix) {
			m.own[name] = v
		}
	}
	header.Origin(m.own, d.Exchange, d.RoutingKey)
	d.properties().Carry(m.own)
	if at := arrival(j.raw).Expired; !at.IsZero() {
		m.own[HeaderExpired] = at.UnixMilli()
	}
	before := d.deliveries
	if early {
		before -= d.returns // each of those deliveries was only held
	}
	m.own[HeaderDeliveries] = before
	return m
}
