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

// A message that is handed out and comes back to its queue, because its consumer paused, ended or lost its
// connection, comes nearer to the queue's delivery limit each time, although no handler has seen it. A queue
// of RabbitMQ 4 without a limit of its own drops it when it comes back for the 21st time, and a client cannot
// find out which limit a queue has. So the consumer renews such a message: it publishes a copy straight to
// the queue, and its returns count from zero, and acknowledges the received one when the copy is confirmed. The
// copy has the same id, body, properties and headers, and what its next consumer needs to decide when it may
// be handled (HeaderExpired).
//
// Before its instant a message is renewed when it has come back once, so that holding it costs no more than
// one return. No handler can have had it. In the meantime it stays where it is, and if its instant comes
// first, it is handled. After its instant its deliveries may have been handlers that ended their process, and
// the queue's limit may be there for them: it is renewed when it has come back more often than most limits
// that users set, and the copy has the count (HeaderDeliveries), which ends at MaxDeliveries.

// maxReturns is how often a message may come back before it is renewed after its instant. RabbitMQ's own limit,
// since 4.0, is 20.
const maxReturns = 15

// A copy that may be handled when it arrives is delayed by renewDelay, or the next longer delay that the strategy
// has, unless that is more than maxRenewDelay.
const (
	renewDelay    = time.Second
	maxRenewDelay = 10 * time.Second
)

// maxRenewals bounds the renewals of a subscription under way: at most that many messages are
// there twice when its connection is lost.
const maxRenewals = wire.Window

// isWorn reports whether a message is to be renewed.
func (d *Delivery) isWorn(w lasthop.Decision) bool {
	_, unreadable := d.Headers[HeaderUnreadable]
	switch {
	case unreadable || w.Return && w.Wait == 0: // it is replaced now
		return false
	case w.Wait > 0:
		return d.returns > 0
	}
	return d.returns >= maxReturns && d.deliveries <= header.MaxDeliveries
}

// renewals are those of a subscription under way.
type renewals struct {
	ctx   context.Context
	stop  context.CancelFunc // what is not confirmed yet then goes back as it is
	count int
	ended chan *job // nil for one that was renewed
}

func newRenewals(live context.Context) renewals {
	ctx, stop := context.WithCancel(live)
	return renewals{ctx: ctx, stop: stop, ended: make(chan *job)}
}

// end takes in the outcome of a renewal. A message that could not be renewed is held as it is.
func (r *renewals) end(j *job, h *holding, now time.Time) {
	r.count--
	if j != nil {
		h.add(j, now)
	}
}

// renew begins to renew messages.
func (s *subscription) renew(k *consumer) {
	for s.renewals.count < maxRenewals && s.renewals.ctx.Err() == nil {
		j := s.held.nextWorn()
		if j == nil {
			return
		}
		s.renewals.count++
		go func() { // no handler waits for it, and the end of the consumer not for long
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

// renewed publishes a copy in place of a message, in one try.
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

// wayOfCopy returns the route of a copy. One that may be handled when it arrives comes a little later where the strategy
// can do that: the received message has to be acknowledged before, because the handler may end the process.
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

// copyOf returns a message that is like a received one to its next consumer.
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
		before -= d.returns // it was held each time
	}
	m.own[HeaderDeliveries] = before
	return m
}
