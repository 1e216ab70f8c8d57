package amqptest

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// content is a message whose frames have not all arrived yet.
type content struct {
	exchange, key        string
	mandatory, immediate bool
	headed               bool
	size                 uint64
	message              amqp.Publishing
}

func (ch *channel) onPublish(d *codec.Decoder) *rabbit.Error {
	d.Short()
	ct := &content{exchange: d.ShortStr(), key: d.ShortStr()}
	bits := d.Bits()
	ct.mandatory, ct.immediate = bits[0], bits[1]
	ch.content = ct
	ch.conn.published = true
	return nil
}

// onContent handles the header frame or a body frame of a message.
func (ch *channel) onContent(f codec.Frame) {
	ct := ch.content
	if ct == nil && len(ch.conn.srv.faults.controls) > 0 {
		return // the frame belongs to a message whose basic.publish a Control has dropped
	}
	if ct == nil || ct.headed != (f.Kind == codec.FrameBody) {
		ch.conn.fail(rabbit.Refusal(amqp.UnexpectedFrame, "expected method frame, got non method frame instead"), 0)
		return
	}
	if f.Kind == codec.FrameHeader {
		d := codec.NewDecoder(f.Payload)
		d.Long() // skip class and weight
		ct.headed, ct.size, ct.message = true, d.LongLong(), d.Properties()
		if d.Failed() {
			ch.conn.fail(rabbit.Refusal(amqp.SyntaxError, "cannot decode properties"), basicPublish)
			return
		}
	} else {
		ct.message.Body = append(ct.message.Body, f.Payload...)
	}
	if uint64(len(ct.message.Body)) < ct.size {
		return
	}
	ch.content = nil
	if err := ch.publish(ct); err != nil {
		ch.fail(err, basicPublish)
	}
	ch.conn.block()
}

// publish routes a message and answers its publisher.
func (ch *channel) publish(ct *content) *rabbit.Error {
	if err := ch.acceptable(ct); err != nil {
		return err
	}
	s, v := ch.conn.srv, ch.conn.vhost
	m, queues, err := v.Prepare(ct.exchange, ct.key, ct.message)
	if err != nil {
		return err
	}
	s.published[ct.exchange]++
	names := []string{ct.exchange}
	if ct.exchange == "" {
		names[0] = ct.key
	}
	for _, q := range queues {
		names = append(names, q.Name)
	}
	if ch.confirming {
		ch.seq++
	}
	fault := s.faults.of(names)
	if fault.refusal != nil {
		return fault.refusal
	}
	var out rabbit.Outcome
	if !fault.returns && !fault.nacks {
		out = v.Publish(m, queues)
	}
	if ct.mandatory && (fault.returns || !out.Routed && !fault.nacks) {
		args := encode(uint16(amqp.NoRoute), "NO_ROUTE", ct.exchange, ct.key)
		ch.conn.send(ch.id, basicReturn, ct.exchange, args, header(m.Publishing), m.Body)
	}
	ch.confirm(names[0], fault, out.Rejected || fault.nacks)
	return nil
}

// acceptable returns an error if RabbitMQ refuses the message, whichever queues it would be routed to.
func (ch *channel) acceptable(ct *content) *rabbit.Error {
	c, size := ch.conn, len(ct.message.Body)
	switch most := c.srv.opts.MaxMessageSize; {
	case ct.immediate:
		return rabbit.Refusal(amqp.NotImplemented, "immediate=true")
	case size > most && most == 512<<20:
		return rabbit.Refusal(amqp.PreconditionFailed, "message size %d is larger than max size %d", size, most)
	case size > most:
		return rabbit.Refusal(amqp.PreconditionFailed, "message size %d is larger than configured max size %d", size, most)
	}
	if err := c.permit(PermissionWrite, "exchange", ct.exchange); err != nil {
		return err
	}
	if u := ct.message.UserId; u != "" && u != c.user.Name {
		return rabbit.Refusal(amqp.PreconditionFailed, "user_id property set to '%s' but authenticated user was '%s'", u, c.user.Name)
	}
	if ct.message.ReplyTo == "amq.rabbitmq.reply-to" {
		return rabbit.Refusal(amqp.PreconditionFailed, "fast reply consumer does not exist")
	}
	return nil
}

// confirm acks or nacks a message if the channel is in confirm mode, unless a fault holds the confirm back.
func (ch *channel) confirm(about string, fault effect, rejected bool) {
	if !ch.confirming {
		return
	}
	tag := ch.seq
	tell := func() {
		if ch.closing || ch.conn.ended {
			return
		}
		m := basicAck
		if rejected {
			m = basicNack
		}
		ch.conn.send(ch.id, m, about, encode(tag, uint8(0)))
	}
	if fault.silent != nil {
		fault.silent.held = append(fault.silent.held, tell)
		return
	}
	tell()
}

// block blocks a connection that has published if an alarm is in effect.
func (c *conn) block() {
	reason := c.srv.faults.alarm
	if reason == "" || !c.published || c.blocked || !c.open || c.closing {
		return
	}
	c.blocked = true
	if able, _ := c.able["connection.blocked"].(bool); able {
		c.send(0, connectionBlocked, "", encode(reason))
	}
}
