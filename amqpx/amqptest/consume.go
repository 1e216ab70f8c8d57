package amqptest

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
)

func (ch *channel) onQos(d *decoder) *rabbit.Error {
	size := d.long()
	count := d.short()
	global := d.bits()[0]
	if size != 0 {
		return rabbit.Refusal(amqp.NotImplemented, "prefetch_size!=0 (%d)", size)
	}
	if err := ch.deliveries.Qos(int(count), global); err != nil {
		return err
	}
	ch.reply(false, basicQosOk, "", nil)
	return nil
}

func (ch *channel) onConsume(d *decoder) *rabbit.Error {
	d.short()
	name, tag := d.shortstr(), d.shortstr()
	bits := d.bits()
	nowait := bits[3]
	args := d.table()
	q, err := ch.readable(d, name)
	if err != nil || q == nil {
		return err
	}
	return ch.deliveries.Consume(q, rabbit.Consumer{Tag: tag, NoAck: bits[1], Exclusive: bits[2]}, args, func(tag string) {
		var e encoder
		e.shortstr(tag)
		ch.reply(nowait, basicConsumeOk, q.Name, e.b)
	})
}

func (ch *channel) onCancel(d *decoder) *rabbit.Error {
	tag, nowait := d.shortstr(), d.bits()[0]
	ch.deliveries.Cancel(tag)
	var e encoder
	e.shortstr(tag)
	ch.reply(nowait, basicCancelOk, "", e.b)
	return nil
}

func (ch *channel) onCancelOk(*decoder) *rabbit.Error { return nil }

func (ch *channel) onGet(d *decoder) *rabbit.Error {
	d.short()
	name, noAck := d.shortstr(), d.bits()[0]
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
	var e encoder
	ch.delivered(&e, got)
	e.long(uint32(q.Ready()))
	ch.message(basicGetOk, q.Name, e.b, got.Message)
	return nil
}

// Deliver makes a channel a rabbit.Sink.
func (ch *channel) Deliver(consumer string, got rabbit.Delivery) {
	var e encoder
	e.shortstr(consumer)
	ch.delivered(&e, got)
	ch.message(basicDeliver, got.Message.RoutingKey(), e.b, got.Message)
}

// Cancelled makes a channel a rabbit.Sink.
func (ch *channel) Cancelled(consumer string) {
	if notify, _ := ch.conn.able["consumer_cancel_notify"].(bool); !notify {
		return
	}
	var e encoder
	e.shortstr(consumer)
	e.bool(true) // no answer is expected
	ch.conn.send(ch.id, basicCancel, "", e.b)
}

// delivered are the arguments that basic.deliver and basic.get-ok share.
func (ch *channel) delivered(e *encoder, got rabbit.Delivery) {
	e.longlong(got.Tag)
	e.bool(got.Redelivered)
	e.shortstr(got.Message.Exchange)
	e.shortstr(got.Message.RoutingKey())
	ch.watch()
}

// message sends a method with a message.
func (ch *channel) message(m method, about string, args []byte, msg *rabbit.Message) {
	p := msg.Publishing
	p.Headers = msg.Delivered(ch.conn.srv.broker.Version())
	ch.conn.send(ch.id, m, about, args, header(p), p.Body)
}

// watch closes the channel when a delivery waits too long for its
// acknowledgement.
func (ch *channel) watch() {
	most := ch.conn.srv.opts.ConsumerTimeout
	if most < 0 || ch.timeout != nil {
		return
	}
	ch.timeout = time.AfterFunc(most, func() { ch.conn.srv.do(ch.overdue) })
}

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
	ch.fail(rabbit.Refusal(amqp.PreconditionFailed, "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. "+
		"This timeout value can be configured, see consumers doc guide to learn more", ch.id, s.opts.ConsumerTimeout.Milliseconds()), 0)
}

func (ch *channel) onAck(d *decoder) *rabbit.Error {
	tag, multiple := d.longlong(), d.bits()[0]
	if d.failed() {
		return nil
	}
	return ch.deliveries.Ack(tag, multiple)
}

func (ch *channel) onNack(d *decoder) *rabbit.Error {
	tag, bits := d.longlong(), d.bits()
	if d.failed() {
		return nil
	}
	return ch.deliveries.Nack(tag, bits[0], bits[1])
}

func (ch *channel) onReject(d *decoder) *rabbit.Error {
	tag, requeue := d.longlong(), d.bits()[0]
	if d.failed() {
		return nil
	}
	return ch.deliveries.Reject(tag, requeue)
}

func (ch *channel) onRecover(d *decoder) *rabbit.Error {
	if err := ch.onRecoverAsync(d); err != nil {
		return err
	}
	ch.reply(false, basicRecoverOk, "", nil)
	return nil
}

func (ch *channel) onRecoverAsync(d *decoder) *rabbit.Error {
	if !d.bits()[0] {
		return rabbit.Refusal(amqp.NotImplemented, "requeue=false")
	}
	ch.deliveries.Recover()
	return nil
}
