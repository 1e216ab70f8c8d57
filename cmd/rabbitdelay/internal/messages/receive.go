package messages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ensureQueue creates the queue if it does not exist, and for a destination also its dead-letter queue. A dead-letter
// queue does not get its own dead-letter queue.
func (r *receiver) ensureQueue(d *doorway) error {
	there, err := d.hasQueue(r.queue)
	if there || err != nil {
		return err
	}
	destinations := d.c.Topology.Destinations
	listed := slices.ContainsFunc(destinations, func(x topology.Destination) bool { return x.Queue == r.queue || x.DeadLetterQueue() == r.queue })
	if declare := d.c.Broker.Declare; declare == amqpx.DeclareNothing || declare == amqpx.DeclareListed && !listed {
		return fmt.Errorf("the queue %q does not exist, and broker.declare: %s does not allow creating it", r.queue, declare)
	}
	queues := d.listed(r.queue).Queues(d.c.Delay.QueueType)
	if strings.HasSuffix(r.queue, ".dead") || slices.ContainsFunc(destinations, func(x topology.Destination) bool {
		return !x.ToExchange() && x.DeadLetterQueue() == r.queue
	}) {
		queues = []topology.Queue{{Name: r.queue, Type: d.c.Delay.QueueType}}
	}
	ch, err := channels.Open(d.conn)
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	var names []string
	for _, q := range queues {
		if there, err := d.hasQueue(q.Name); err != nil {
			return err
		} else if there {
			continue
		}
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Table()); err != nil {
			return fmt.Errorf("declaring queue %s: %w", q.Name, channels.NeedsPermission("configure", err))
		}
		names = append(names, q.Name)
	}
	slices.Reverse(names) // the requested queue first
	created(r.App, d.c, names)
	return nil
}

// consume consumes until the context is done, enough messages have arrived, or an error occurs that reconnecting would
// not fix.
func (r *receiver) consume(ctx context.Context, d *doorway) error {
	for {
		err := r.session(ctx, d.conn)
		lost := d.conn.IsClosed()
		d.close()
		switch {
		case err == nil, errors.Is(err, errGoesBack):
			return err
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the cause is not an error of the session
		case !lost:
			return err
		}
		if d = r.reconnect(ctx, d.c, err); d == nil {
			return nil
		}
	}
}

// reconnect connects again, and retries until it succeeds. It returns nil if the context is done.
func (r *receiver) reconnect(ctx context.Context, c *config.Config, err error) *doorway {
	const pause = time.Second
	log := r.Logger()
	for {
		log.Warn("the connection was lost; reconnecting", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		var d *doorway
		if d, err = knock(ctx, r.App, c); err == nil {
			return d
		}
	}
}

// session is a consumer on one connection. Its delivery tags start at 1.
type session struct {
	ch       *amqp.Channel
	prefetch uint64
	wanted   uint64 // 0 means no limit
	printed  uint64 // the tag of the last printed delivery
	acked    uint64
}

// session consumes over one connection. At its end it acknowledges the printed messages. All other messages return to
// the queue when the channel is closed.
func (r *receiver) session(ctx context.Context, conn *amqp.Connection) error {
	ch, err := channels.Open(conn)
	if err != nil {
		return err
	}
	s := &session{ch: ch, prefetch: uint64(r.prefetch)}
	if r.count > 0 {
		s.wanted = uint64(r.count - r.received)
		s.prefetch = min(s.prefetch, s.wanted)
	}
	gone := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(int(s.prefetch), 0, false); err != nil {
		return err
	}
	deliveries, err := live.ConsumeQueue(ch, r.queue, consumerTag)
	if err != nil {
		return fmt.Errorf("consuming from %s: %w", r.queue, channels.NeedsPermission("read", err))
	}
	defer func() { r.received -= int64(s.printed - s.acked) }() // these will be redelivered
	open, err := r.takeAll(ctx, s, deliveries)
	if open {
		return errors.Join(err, s.finish(conn))
	}
	if !ch.IsClosed() {
		return fmt.Errorf("consuming from %s: the broker cancelled the consumer, possibly because the queue was deleted", r.queue)
	}
	if e := <-gone; e != nil {
		return fmt.Errorf("consuming from %s: %w", r.queue, e)
	}
	return fmt.Errorf("consuming from %s: %w", r.queue, amqp.ErrClosed)
}

// takeAll prints deliveries until there are enough or the context is done. The result open is false if the deliveries
// have ended, for example because the broker has cancelled the consumer.
func (r *receiver) takeAll(ctx context.Context, s *session, deliveries <-chan amqp.Delivery) (open bool, err error) {
	tick := time.NewTicker(ackPause)
	defer tick.Stop()
	for r.count == 0 || r.received < r.count {
		select {
		case <-ctx.Done():
			return true, nil
		case <-tick.C:
			s.ack()
		case d, ok := <-deliveries:
			if !ok {
				return false, nil
			}
			if wait := untilDue(d); wait > 0 {
				s.ack()
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
				if ctx.Err() != nil {
					return true, nil // the message returns to the queue
				}
			}
			if err := r.take(d); err != nil {
				return true, err
			}
			s.printed = d.DeliveryTag
			if s.printed-s.acked >= max(s.prefetch/4, 1) {
				s.ack()
			}
		}
	}
	return true, nil
}

// untilDue returns how long to hold a message that arrived early, or 0 if it must not be held because it is early by
// more than its lead plus maxHold.
func untilDue(d amqp.Delivery) time.Duration {
	due, ok := dueOf(d)
	lead, _ := integer(d.Headers[naming.HeaderLead])
	lead = min(max(lead, 0), topology.MaxLead.Milliseconds())
	if wait := time.Until(due); ok && wait <= maxHold+time.Duration(lead)*time.Millisecond {
		return wait
	}
	return 0
}

// ack acknowledges the printed messages, many at a time, because a quorum queue processes only 32 single
// acknowledgements concurrently and loses the others when the channel is closed.
//
// With a count, the last messages are acknowledged at the end, so that the broker delivers no more messages than
// requested. On RabbitMQ 4.0 to 4.2, each message that is delivered and returned comes one step closer to its queue's
// delivery limit.
func (s *session) ack() {
	through := s.printed
	if s.wanted > 0 {
		through = min(through, s.wanted-s.prefetch)
	}
	_ = s.ackThrough(through) // if this fails, the connection is lost and the messages are redelivered
}

func (s *session) ackThrough(tag uint64) error {
	if tag <= s.acked {
		return nil
	}
	err := s.ch.Ack(tag, true)
	if err == nil {
		s.acked = tag
	}
	return err
}

// finish acknowledges all printed messages.
func (s *session) finish(conn *amqp.Connection) error {
	defer time.AfterFunc(ackTimeout, func() { _ = conn.CloseDeadline(time.Now()) }).Stop()
	if err := s.ch.Cancel(consumerTag, false); err != nil { // acknowledgements now cause no further deliveries
		return err
	}
	if err := s.ackThrough(s.printed); err != nil {
		return err
	}
	return s.ch.Close() // waits for the acknowledgements, which closing the connection might overtake
}
