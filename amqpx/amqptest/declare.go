package amqptest

import (
	"cmp"
	"crypto/rand"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/codec"
)

// queueName returns name, or if it is empty the queue that was declared last.
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
		err = cmp.Or(c.vhost.CheckExchangeKind(s.Kind), c.permit(PermissionConfigure, "exchange", s.Name), ch.permitAlternate(s))
		if err == nil {
			err = c.vhost.DeclareExchange(s)
		}
	}
	if err == nil {
		ch.reply(nowait, exchangeDeclareOk, s.Name, nil)
	}
	return err
}

// permitAlternate asks for what a new exchange's alternate exchange takes.
func (ch *channel) permitAlternate(s rabbit.ExchangeSpec) *rabbit.Error {
	ae, ok := s.Args["alternate-exchange"].(string)
	if !ok || ch.conn.vhost.Exchange(s.Name) != nil {
		return nil
	}
	return cmp.Or(ch.conn.permit(PermissionRead, "exchange", s.Name), ch.conn.permit(PermissionWrite, "exchange", ae))
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

// binding has the arguments of the methods that bind or unbind.
type binding struct {
	rabbit.Binding

	kind, to string // what is bound
	nowait   bool
}

// readBinding reads a binding; queue.unbind has no flag for nowait.
func readBinding(d *codec.Decoder, flag bool) (b binding) {
	d.Short()
	b.to, b.Source, b.Key = d.ShortStr(), d.ShortStr(), d.ShortStr()
	if flag {
		b.nowait = d.Bits()[0]
	}
	b.Args = d.Table()
	return b
}

func (b binding) ofExchange() binding {
	b.kind, b.ToExchange = "exchange", b.to
	return b
}

// ofQueue also resolves an empty queue name.
func (b binding) ofQueue(ch *channel) (binding, *rabbit.Error) {
	name, err := ch.queueName(b.to)
	b.kind, b.to, b.Queue = "queue", name, name
	return b, err
}

func (ch *channel) onExchangeBind(d *codec.Decoder) *rabbit.Error {
	return ch.bind(d, readBinding(d, true).ofExchange(), exchangeBindOk)
}

func (ch *channel) onExchangeUnbind(d *codec.Decoder) *rabbit.Error {
	return ch.unbind(d, readBinding(d, true).ofExchange(), exchangeUnbindOk)
}

func (ch *channel) onQueueBind(d *codec.Decoder) *rabbit.Error {
	b := readBinding(d, true)
	if b.to == "" && b.Key == "" {
		b.Key = ch.lastQueue
	}
	b, err := b.ofQueue(ch)
	if err != nil {
		return err
	}
	return ch.bind(d, b, queueBindOk)
}

func (ch *channel) onQueueUnbind(d *codec.Decoder) *rabbit.Error {
	b, err := readBinding(d, false).ofQueue(ch)
	if err != nil {
		return err
	}
	return ch.unbind(d, b, queueUnbindOk)
}

// permitBind checks the permissions that binding needs.
func (ch *channel) permitBind(b binding) *rabbit.Error {
	c := ch.conn
	return cmp.Or(c.permit(PermissionWrite, b.kind, b.to), c.permit(PermissionRead, "exchange", b.Source), c.srv.faults.refusal(b.to), c.srv.faults.refusal(b.Source))
}

// bind answers once the binding is effective. Later frames of the channel wait until
// then.
func (ch *channel) bind(d *codec.Decoder, b binding, ok method) *rabbit.Error {
	if d.Failed() {
		return nil
	}
	if err := ch.permitBind(b); err != nil {
		return err
	}
	effective, err := ch.conn.vhost.Bind(b.Binding, ch.conn)
	if err != nil {
		return err
	}
	reply := func() { ch.reply(b.nowait, ok, b.to, nil) }
	if late := ch.conn.srv.until(time.UnixMilli(effective)); late > 0 {
		ch.in.stall(ch.conn, late, ch.onFrame, reply)
		return nil
	}
	reply()
	return nil
}

func (ch *channel) unbind(d *codec.Decoder, b binding, ok method) *rabbit.Error {
	if d.Failed() {
		return nil
	}
	if err := ch.permitBind(b); err != nil {
		return err
	}
	if err := ch.conn.vhost.Unbind(b.Binding, ch.conn); err != nil {
		return err
	}
	ch.reply(b.nowait, ok, b.to, nil)
	return nil
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
	var e codec.Encoder
	e.ShortStr(s.Name)
	e.Long(uint32(q.Ready()))
	e.Long(uint32(q.Consumers()))
	ch.reply(nowait, queueDeclareOk, s.Name, e.Bytes())
	return nil
}

// declareQueue creates or finds a queue, and names one that has no name.
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
	var e codec.Encoder
	e.Long(uint32(n))
	ch.reply(bits[2], queueDeleteOk, name, e.Bytes())
	return nil
}

func (ch *channel) onQueuePurge(d *codec.Decoder) *rabbit.Error {
	d.Short()
	name, bits := d.ShortStr(), d.Bits()
	q, err := ch.readable(d, name)
	if err != nil || q == nil {
		return err
	}
	var e codec.Encoder
	e.Long(uint32(q.Purge()))
	ch.reply(bits[0], queuePurgeOk, q.Name, e.Bytes())
	return nil
}

// readable returns a queue that the user may read, nil if the arguments cannot be
// decoded.
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
