package amqptest

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

type channel struct {
	conn *conn
	id   uint16
	in   inbox

	deliveries *rabbit.Channel
	lastQueue  string // the last declared queue, to which an empty name refers
	confirming bool
	seq        uint64 // number of publishes since confirm.select
	content    *content
	closing    bool // channel.close was sent
	timeout    *time.Timer
}

// onFrame handles a method frame or a content frame.
func (ch *channel) onFrame(f codec.Frame) {
	if ch.closing && (f.Kind != codec.FrameMethod || methodIn(f.Payload) != channelCloseOk && methodIn(f.Payload) != channelClose) {
		return // the client sent this frame before it received channel.close
	}
	switch f.Kind {
	case codec.FrameMethod:
		ch.onMethod(f)
	case codec.FrameHeader, codec.FrameBody:
		ch.onContent(f)
	default:
		ch.conn.fail(rabbit.Refusal(amqp.FrameError, "type %d, all octets = <<>>: {frame_too_large,0,0}", f.Kind), 0)
	}
}

func (ch *channel) onMethod(f codec.Frame) {
	m, d := readMethod(f.Payload)
	ch.conn.srv.calls[m]++
	if ch.content != nil {
		ch.conn.fail(rabbit.Refusal(amqp.UnexpectedFrame, "expected content header for class 60, got non content header frame instead"), m)
		return
	}
	handle := ch.conn.srv.handlers[m]
	err := rabbit.Refusal(amqp.CommandInvalid, "unimplemented method")
	if handle != nil {
		err = handle(ch, d)
	}
	if err == nil && d.Failed() {
		err = rabbit.Refusal(amqp.SyntaxError, "cannot decode %s", m)
	}
	if err != nil {
		ch.fail(err, m)
	}
}

// handler decodes the arguments of a method, executes it and answers. If the arguments cannot be decoded, they are zero
// values and the method has no effect; onMethod then closes the connection with a syntax error.
type handler func(ch *channel, d *codec.Decoder) *rabbit.Error

// handlers returns the handler of each method that a client may send on a channel.
func handlers() map[method]handler {
	return map[method]handler{
		channelOpen: (*channel).onOpen, channelClose: (*channel).onClose, channelCloseOk: (*channel).onCloseOk, channelFlow: (*channel).onFlow,
		exchangeDeclare: (*channel).onExchangeDeclare, exchangeDelete: (*channel).onExchangeDelete,
		exchangeBind: onBinding("exchange", exchangeBindOk), exchangeUnbind: onBinding("exchange", exchangeUnbindOk),
		queueDeclare: (*channel).onQueueDeclare, queueDelete: (*channel).onQueueDelete, queuePurge: (*channel).onQueuePurge,
		queueBind: onBinding("queue", queueBindOk), queueUnbind: onBinding("queue", queueUnbindOk),
		basicQos: (*channel).onQos, basicConsume: (*channel).onConsume, basicGet: (*channel).onGet, basicCancel: (*channel).onCancel,
		basicCancelOk: func(*channel, *codec.Decoder) *rabbit.Error { return nil },
		basicAck:      onSettle(func(c *rabbit.Channel, tag uint64, bits [8]bool) *rabbit.Error { return c.Ack(tag, bits[0]) }),
		basicNack:     onSettle(func(c *rabbit.Channel, tag uint64, bits [8]bool) *rabbit.Error { return c.Nack(tag, bits[0], bits[1]) }),
		basicReject:   onSettle(func(c *rabbit.Channel, tag uint64, bits [8]bool) *rabbit.Error { return c.Reject(tag, bits[0]) }),
		basicRecover:  (*channel).onRecover, basicRecoverAsync: (*channel).onRecoverAsync,
		basicPublish: (*channel).onPublish, confirmSelect: (*channel).onConfirmSelect,
		txSelect: (*channel).onTx, txCommit: (*channel).onTx, txRollback: (*channel).onTx,
	}
}

// reply sends an answer, unless the client has set no-wait.
func (ch *channel) reply(nowait bool, m method, about string, args []byte) {
	if !nowait {
		ch.conn.send(ch.id, m, about, args)
	}
}

// fail closes the channel with an error or, if the error is a hard one, the whole connection.
func (ch *channel) fail(err *rabbit.Error, m method) {
	if !err.Soft() {
		ch.conn.fail(err, m)
		return
	}
	if ch.closing {
		return
	}
	ch.closing = true
	ch.end()
	ch.conn.send(ch.id, channelClose, "", closing(err, m))
}

// end stops the channel's consumers and its timer, and requeues its unsettled messages.
func (ch *channel) end() {
	ch.content = nil
	ch.deliveries.Close()
	if ch.timeout != nil {
		ch.timeout.Stop()
	}
}

func (ch *channel) onOpen(d *codec.Decoder) *rabbit.Error {
	d.ShortStr()
	ch.reply(false, channelOpenOk, "", []byte{0, 0, 0, 0})
	return nil
}

func (ch *channel) onClose(*codec.Decoder) *rabbit.Error {
	ch.end()
	delete(ch.conn.channels, ch.id)
	ch.reply(false, channelCloseOk, "", nil)
	return nil
}

func (ch *channel) onCloseOk(*codec.Decoder) *rabbit.Error {
	if ch.closing {
		delete(ch.conn.channels, ch.id)
	}
	return nil
}

func (ch *channel) onFlow(d *codec.Decoder) *rabbit.Error {
	if !d.Bits()[0] {
		return rabbit.Refusal(amqp.NotImplemented, "active=false")
	}
	ch.reply(false, channelFlowOk, "", []byte{1})
	return nil
}

func (ch *channel) onConfirmSelect(d *codec.Decoder) *rabbit.Error {
	ch.confirming = true
	ch.reply(d.Bits()[0], confirmSelectOk, "", nil)
	return nil
}

func (ch *channel) onTx(*codec.Decoder) *rabbit.Error {
	return rabbit.Refusal(amqp.NotImplemented, "amqptest does not support transactions")
}
