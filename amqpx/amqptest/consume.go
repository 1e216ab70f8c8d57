package amqptest

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

func (ch *channel) onQos(d *codec.Decoder) *rabbit.Error {
	size := d.Long()
	count := d.Short()
	global := d.Bits()[0]
	if size != 0 {
		return rabbit.Refusal(amqp.NotImplemented, "prefetch_size!=0 (%d)", size)
	}
	if err := ch.deliveries.Qos(int(count), global); err != nil {
		return err
	}
	ch.reply(false, basicQosOk, "", nil)
	return nil
}

func (ch *channel) onConsume(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, tag := d.ShortStr(), d.ShortStr()
	bits := d.Bits()
	nowait := bits[3]
	args := d.Table()
	q, err := ch.readable(d, name)
	if err != nil || q == nil {
		return err
	}
	return ch.deliveries.Consume(q, rabbit.Consumer{Tag: tag, NoAck: bits[1], Exclusive: bits[2]}, args, func(tag string) {
		ch.reply(nowait, basicConsumeOk, q.Name, encode(tag))
	})
}

func (ch *channel) onCancel(d *codec.Decoder) *rabbit.Error {
	tag, nowait := d.ShortStr(), d.Bits()[0]
	ch.deliveries.Cancel(tag)
	ch.reply(nowait, basicCancelOk, "", encode(tag))
	return nil
}

func (ch *channel) onGet(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, noAck := d.ShortStr(), d.Bits()[0]
	q, err := ch.readable(d, name)
	if err != nil || q == nil {
		return err
	}
	got, ok, err := ch.deliveries.Get(q, noAck)
	if err != nil {
		return err
	}
	if !ok {
		ch.reply(false, basicGetEmpty, q.Name, []byte{0})
		return nil
	}
	m := got.Message
	ch.message(basicGetOk, q.Name, m, got.Tag, got.Redelivered, m.Exchange, m.RoutingKey(), uint32(q.Ready()))
	return nil
}

// Deliver implements rabbit.Sink.
func (ch *channel) Deliver(consumer string, got rabbit.Delivery) {
	m := got.Message
	ch.message(basicDeliver, m.RoutingKey(), m, consumer, got.Tag, got.Redelivered, m.Exchange, m.RoutingKey())
}

// Cancelled implements rabbit.Sink.
func (ch *channel) Cancelled(consumer string) {
	if notify, _ := ch.conn.able["consumer_cancel_notify"].(bool); !notify {
		return
	}
	ch.conn.send(ch.id, basicCancel, "", encode(consumer, true)) // true means that the client does not answer (no-wait)
}

// message delivers a message and starts the timer for the consumer timeout.
func (ch *channel) message(m method, about string, msg *rabbit.Message, args ...any) {
	if most := ch.conn.srv.opts.ConsumerTimeout; most >= 0 && ch.timeout == nil {
		ch.timeout = time.AfterFunc(most, func() { ch.conn.srv.do(ch.overdue) })
	}
	p := ch.conn.srv.seen(msg).Publishing
	ch.conn.send(ch.id, m, about, encode(args...), header(p), p.Body)
}

// overdue closes the channel if a delivery was not acknowledged in time. Since RabbitMQ 4.3, it cancels the consumer
// instead, and closes the channel only if there is no consumer to cancel.
func (ch *channel) overdue() {
	if ch.closing || ch.conn.ended {
		return
	}
	s := ch.conn.srv
	oldest, ok := ch.deliveries.Oldest(s.broker.Version().AtLeast(4, 3, 0))
	if !ok {
		ch.timeout = nil
		return
	}
	if left := s.until(time.UnixMilli(oldest).Add(s.opts.ConsumerTimeout)); left > 0 {
		ch.timeout.Reset(left)
		return
	}
	timeout := s.opts.ConsumerTimeout.Milliseconds()
	if s.broker.Version().AtLeast(4, 3, 0) {
		if !ch.deliveries.Overdue(oldest) {
			ch.timeout.Reset(0) // check the next delivery
			return
		}
		timeout = -1 // the value in RabbitMQ 4.3's own error text
	}
	ch.fail(rabbit.Refusal(amqp.PreconditionFailed, "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. "+
		"This timeout value can be configured, see consumers doc guide to learn more", ch.id, timeout), 0)
}

// onSettle returns the handler of basic.ack, nack or reject.
func onSettle(settle func(c *rabbit.Channel, tag uint64, bits [8]bool) *rabbit.Error) handler {
	return func(ch *channel, d *codec.Decoder) *rabbit.Error {
		tag, bits := d.LongLong(), d.Bits()
		if d.Failed() {
			return nil
		}
		return settle(ch.deliveries, tag, bits)
	}
}

func (ch *channel) onRecover(d *codec.Decoder) *rabbit.Error {
	if err := ch.onRecoverAsync(d); err != nil {
		return err
	}
	ch.reply(false, basicRecoverOk, "", nil)
	return nil
}

func (ch *channel) onRecoverAsync(d *codec.Decoder) *rabbit.Error {
	if !d.Bits()[0] {
		return rabbit.Refusal(amqp.NotImplemented, "requeue=false")
	}
	ch.deliveries.Recover()
	return nil
}
