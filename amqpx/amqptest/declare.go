package amqptest

import (
	"cmp"
	"crypto/rand"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// queueName returns name or, if name is empty, the name of the queue that the channel declared last.
func (ch *channel) queueName(name string) (string, *rabbit.Error) {
	if name = cmp.Or(name, ch.lastQueue); name == "" {
		return "", rabbit.Refusal(amqp.NotFound, "no previously declared queue")
	}
	return name, nil
}

func (ch *channel) onExchangeDeclare(d *codec.Decoder) *rabbit.Error {
	d.Short()
	s := rabbit.ExchangeSpec{Name: d.ShortStr(), Kind: d.ShortStr()}
	bits := d.Bits()
	passive, nowait := bits[0], bits[4]
	s.Durable, s.AutoDelete, s.Internal, s.Args = bits[1], bits[2], bits[3], d.Table()
	if d.Failed() {
		return nil
	}
	if err := ch.conn.srv.faults.refusal(s.Name); err != nil {
		return err
	}
	c := ch.conn
	var err *rabbit.Error
	if passive {
		err = cmp.Or(c.permitAny("exchange", s.Name), c.vhost.CheckExchange(s.Name))
	} else {
		err = cmp.Or(c.vhost.CheckExchangeKind(s.Kind), c.permit(PermissionConfigure, "exchange", s.Name))
		if ae, ok := s.Args["alternate-exchange"].(string); ok && err == nil && c.vhost.Exchange(s.Name) == nil {
			err = cmp.Or(c.permit(PermissionRead, "exchange", s.Name), c.permit(PermissionWrite, "exchange", ae))
		}
		if err == nil {
			err = c.vhost.DeclareExchange(s)
		}
	}
	if err == nil {
		ch.reply(nowait, exchangeDeclareOk, s.Name, nil)
	}
	return err
}

func (ch *channel) onExchangeDelete(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, bits := d.ShortStr(), d.Bits()
	if d.Failed() {
		return nil
	}
	err := ch.conn.permit(PermissionConfigure, "exchange", name)
	if err == nil {
		err = ch.conn.vhost.DeleteExchange(name, bits[0])
	}
	if err == nil {
		ch.reply(bits[1], exchangeDeleteOk, name, nil)
	}
	return err
}

// onBinding returns the handler of a method that binds or unbinds a queue or an exchange. The parameter ok is the
// method with which the server answers.
func onBinding(kind string, ok method) handler {
	return func(ch *channel, d *codec.Decoder) *rabbit.Error {
		c := ch.conn
		d.Short()
		to, b := d.ShortStr(), rabbit.Binding{Source: d.ShortStr(), Key: d.ShortStr()}
		nowait := ok != queueUnbindOk && d.Bits()[0] // queue.unbind has no such flag
		b.Args = d.Table()
		if kind == "exchange" {
			b.ToExchange = to
		} else {
			if ok == queueBindOk && to == "" && b.Key == "" {
				b.Key = ch.lastQueue
			}
			var err *rabbit.Error
			if to, err = ch.queueName(to); err != nil {
				return err
			}
			b.Queue = to
		}
		if d.Failed() {
			return nil
		}
		err := cmp.Or(c.permit(PermissionWrite, kind, to), c.permit(PermissionRead, "exchange", b.Source), c.srv.faults.refusal(to), c.srv.faults.refusal(b.Source))
		if err != nil {
			return err
		}
		var effective int64 // the answer is sent once the binding is effective
		if ok == queueBindOk || ok == exchangeBindOk {
			effective, err = c.vhost.Bind(b, c)
		} else {
			err = c.vhost.Unbind(b, c)
		}
		if err != nil {
			return err
		}
		reply := func() { ch.reply(nowait, ok, to, nil) }
		if late := c.srv.until(time.UnixMilli(effective)); late > 0 {
			ch.in.stall(c, late, ch.onFrame, reply) // also delays later frames on the channel
			return nil
		}
		reply()
		return nil
	}
}

func (ch *channel) onQueueDeclare(d *codec.Decoder) *rabbit.Error {
	d.Short()
	s := rabbit.QueueSpec{Name: d.ShortStr()}
	bits := d.Bits()
	passive, nowait := bits[0], bits[4]
	s.Durable, s.Exclusive, s.AutoDelete, s.Args = bits[1], bits[2], bits[3], d.Table()
	if d.Failed() {
		return nil
	}
	if err := ch.conn.srv.faults.refusal(s.Name); err != nil {
		return err
	}
	q, err := ch.declareQueue(&s, passive)
	if err != nil {
		return err
	}
	ch.lastQueue = s.Name
	ch.reply(nowait, queueDeclareOk, s.Name, encode(s.Name, uint32(q.Ready()), uint32(q.Consumers())))
	return nil
}

// declareQueue creates or finds a queue. It generates a name if the name is empty.
func (ch *channel) declareQueue(s *rabbit.QueueSpec, passive bool) (*rabbit.Queue, *rabbit.Error) {
	c := ch.conn
	if passive {
		name, err := ch.queueName(s.Name)
		if err != nil {
			return nil, err
		}
		s.Name = name
		if err := c.permitAny("queue", name); err != nil {
			return nil, err
		}
		return c.vhost.Find(name, c)
	}
	if s.Name == "" {
		s.Name = "amq.gen-" + rand.Text()[:22]
		return c.vhost.DeclareNamed(*s, c)
	}
	if err := c.permit(PermissionConfigure, "queue", s.Name); err != nil {
		return nil, err
	}
	if dlx, ok := s.Args["x-dead-letter-exchange"].(string); ok && c.vhost.Queue(s.Name) == nil && !strings.HasPrefix(s.Name, "amq.") {
		if err := cmp.Or(c.permit(PermissionRead, "queue", s.Name), c.permit(PermissionWrite, "exchange", dlx)); err != nil {
			return nil, err
		}
	}
	return c.vhost.DeclareQueue(*s, c)
}

func (ch *channel) onQueueDelete(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, bits := d.ShortStr(), d.Bits()
	if d.Failed() {
		return nil
	}
	name, err := ch.queueName(name)
	if err == nil {
		err = ch.conn.permit(PermissionConfigure, "queue", name)
	}
	if err != nil {
		return err
	}
	n, err := ch.conn.vhost.DeleteQueue(name, ch.conn, bits[0], bits[1])
	if err != nil {
		return err
	}
	ch.reply(bits[2], queueDeleteOk, name, encode(uint32(n)))
	return nil
}

func (ch *channel) onQueuePurge(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, bits := d.ShortStr(), d.Bits()
	q, err := ch.readable(d, name)
	if err != nil || q == nil {
		return err
	}
	ch.reply(bits[0], queuePurgeOk, q.Name, encode(uint32(q.Purge())))
	return nil
}

// readable returns a queue that the user may read, or nil if the arguments could not be decoded.
func (ch *channel) readable(d *codec.Decoder, name string) (*rabbit.Queue, *rabbit.Error) {
	if d.Failed() {
		return nil, nil
	}
	name, err := ch.queueName(name)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(ch.conn.permit(PermissionRead, "queue", name), ch.conn.srv.faults.refusal(name)); err != nil {
		return nil, err
	}
	return ch.conn.vhost.Find(name, ch.conn)
}
