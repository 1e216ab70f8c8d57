package amqptest

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Types of frames.
const (
	frameMethod    = 1
	frameHeader    = 2
	frameBody      = 3
	frameHeartbeat = 8
	frameEnd       = 0xCE
)

// frame is one on the wire.
type frame struct {
	kind    uint8
	channel uint16
	payload []byte
}

// readChunk bounds what is allocated for bytes that have only been announced.
const readChunk = 64 << 10

// readFrame reads a frame of at most limit bytes, its head and end included.
func readFrame(r *bufio.Reader, limit uint32) (frame, error) {
	var head [7]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: head[0], channel: binary.BigEndian.Uint16(head[1:])}
	size := binary.BigEndian.Uint32(head[3:])
	if limit != 0 && uint64(size)+8 > uint64(limit) {
		return frame{}, errSyntax
	}
	for left := int(size); left > 0; {
		n := min(left, readChunk)
		at := len(f.payload)
		f.payload = append(f.payload, make([]byte, n)...)
		if _, err := io.ReadFull(r, f.payload[at:]); err != nil {
			return frame{}, err
		}
		left -= n
	}
	end, err := r.ReadByte()
	if err != nil {
		return frame{}, err
	}
	if end != frameEnd {
		return frame{}, errSyntax
	}
	return f, nil
}

func appendFrame(b []byte, kind uint8, channel uint16, payload []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint16(b, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return append(b, frameEnd)
}

// method names a method as AMQP does, "queue.declare"; its number is class and
// method.
type method uint32

func methodOf(class, m uint16) method { return method(uint32(class)<<16 | uint32(m)) }

func (m method) String() string {
	if s, ok := methodNames[m]; ok {
		return s
	}
	return "unknown"
}

// The methods that the server reads or writes.
const (
	connectionStart     = method(10<<16 | 10)
	connectionStartOk   = method(10<<16 | 11)
	connectionTune      = method(10<<16 | 30)
	connectionTuneOk    = method(10<<16 | 31)
	connectionOpen      = method(10<<16 | 40)
	connectionOpenOk    = method(10<<16 | 41)
	connectionClose     = method(10<<16 | 50)
	connectionCloseOk   = method(10<<16 | 51)
	connectionBlocked   = method(10<<16 | 60)
	connectionUnblocked = method(10<<16 | 61)
	channelOpen         = method(20<<16 | 10)
	channelOpenOk       = method(20<<16 | 11)
	channelFlow         = method(20<<16 | 20)
	channelFlowOk       = method(20<<16 | 21)
	channelClose        = method(20<<16 | 40)
	channelCloseOk      = method(20<<16 | 41)
	exchangeDeclare     = method(40<<16 | 10)
	exchangeDeclareOk   = method(40<<16 | 11)
	exchangeDelete      = method(40<<16 | 20)
	exchangeDeleteOk    = method(40<<16 | 21)
	exchangeBind        = method(40<<16 | 30)
	exchangeBindOk      = method(40<<16 | 31)
	exchangeUnbind      = method(40<<16 | 40)
	exchangeUnbindOk    = method(40<<16 | 51)
	queueDeclare        = method(50<<16 | 10)
	queueDeclareOk      = method(50<<16 | 11)
	queueBind           = method(50<<16 | 20)
	queueBindOk         = method(50<<16 | 21)
	queuePurge          = method(50<<16 | 30)
	queuePurgeOk        = method(50<<16 | 31)
	queueDelete         = method(50<<16 | 40)
	queueDeleteOk       = method(50<<16 | 41)
	queueUnbind         = method(50<<16 | 50)
	queueUnbindOk       = method(50<<16 | 51)
	basicQos            = method(60<<16 | 10)
	basicQosOk          = method(60<<16 | 11)
	basicConsume        = method(60<<16 | 20)
	basicConsumeOk      = method(60<<16 | 21)
	basicCancel         = method(60<<16 | 30)
	basicCancelOk       = method(60<<16 | 31)
	basicPublish        = method(60<<16 | 40)
	basicReturn         = method(60<<16 | 50)
	basicDeliver        = method(60<<16 | 60)
	basicGet            = method(60<<16 | 70)
	basicGetOk          = method(60<<16 | 71)
	basicGetEmpty       = method(60<<16 | 72)
	basicAck            = method(60<<16 | 80)
	basicReject         = method(60<<16 | 90)
	basicRecoverAsync   = method(60<<16 | 100)
	basicRecover        = method(60<<16 | 110)
	basicRecoverOk      = method(60<<16 | 111)
	basicNack           = method(60<<16 | 120)
	confirmSelect       = method(85<<16 | 10)
	confirmSelectOk     = method(85<<16 | 11)
	txSelect            = method(90<<16 | 10)
	txCommit            = method(90<<16 | 20)
	txRollback          = method(90<<16 | 30)
)

var methodNames = map[method]string{
	connectionStart: "connection.start", connectionStartOk: "connection.start-ok", connectionTune: "connection.tune",
	connectionTuneOk: "connection.tune-ok", connectionOpen: "connection.open", connectionOpenOk: "connection.open-ok",
	connectionClose: "connection.close", connectionCloseOk: "connection.close-ok", connectionBlocked: "connection.blocked",
	connectionUnblocked: "connection.unblocked",
	channelOpen:         "channel.open", channelOpenOk: "channel.open-ok", channelFlow: "channel.flow", channelFlowOk: "channel.flow-ok",
	channelClose: "channel.close", channelCloseOk: "channel.close-ok",
	exchangeDeclare: "exchange.declare", exchangeDeclareOk: "exchange.declare-ok", exchangeDelete: "exchange.delete",
	exchangeDeleteOk: "exchange.delete-ok", exchangeBind: "exchange.bind", exchangeBindOk: "exchange.bind-ok",
	exchangeUnbind: "exchange.unbind", exchangeUnbindOk: "exchange.unbind-ok",
	queueDeclare: "queue.declare", queueDeclareOk: "queue.declare-ok", queueBind: "queue.bind", queueBindOk: "queue.bind-ok",
	queuePurge: "queue.purge", queuePurgeOk: "queue.purge-ok", queueDelete: "queue.delete", queueDeleteOk: "queue.delete-ok",
	queueUnbind: "queue.unbind", queueUnbindOk: "queue.unbind-ok",
	basicQos: "basic.qos", basicQosOk: "basic.qos-ok", basicConsume: "basic.consume", basicConsumeOk: "basic.consume-ok",
	basicCancel: "basic.cancel", basicCancelOk: "basic.cancel-ok", basicPublish: "basic.publish", basicReturn: "basic.return",
	basicDeliver: "basic.deliver", basicGet: "basic.get", basicGetOk: "basic.get-ok", basicGetEmpty: "basic.get-empty",
	basicAck: "basic.ack", basicReject: "basic.reject", basicRecoverAsync: "basic.recover-async", basicRecover: "basic.recover",
	basicRecoverOk: "basic.recover-ok", basicNack: "basic.nack",
	confirmSelect: "confirm.select", confirmSelectOk: "confirm.select-ok",
	txSelect: "tx.select", txCommit: "tx.commit", txRollback: "tx.rollback",
}

// properties reads the header frame of a message: how long its body is, and
// what comes with it.
func properties(payload []byte) (size uint64, p amqp.Publishing, err error) {
	d := &decoder{b: payload}
	d.short() // class
	d.short() // weight
	size = d.longlong()
	flags := d.short()
	has := func(bit int) bool { return flags>>bit&1 == 1 }
	text := func(bit int, s *string) {
		if has(bit) {
			*s = d.shortstr()
		}
	}
	text(15, &p.ContentType)
	text(14, &p.ContentEncoding)
	if has(13) {
		p.Headers = d.table()
	}
	if has(12) {
		p.DeliveryMode = d.octet()
	}
	if has(11) {
		p.Priority = d.octet()
	}
	text(10, &p.CorrelationId)
	text(9, &p.ReplyTo)
	text(8, &p.Expiration)
	text(7, &p.MessageId)
	if has(6) {
		p.Timestamp = timestamp(d.longlong())
	}
	text(5, &p.Type)
	text(4, &p.UserId)
	text(3, &p.AppId)
	return size, p, d.err
}

// header writes the header frame of a message.
func header(p amqp.Publishing) []byte {
	var props encoder
	var flags uint16
	text := func(bit int, s string) {
		if s != "" {
			flags |= 1 << bit
			props.shortstr(s)
		}
	}
	octet := func(bit int, v uint8) {
		if v != 0 {
			flags |= 1 << bit
			props.octet(v)
		}
	}
	text(15, p.ContentType)
	text(14, p.ContentEncoding)
	if p.Headers != nil {
		flags |= 1 << 13
		props.table(p.Headers)
	}
	octet(12, p.DeliveryMode)
	octet(11, p.Priority)
	text(10, p.CorrelationId)
	text(9, p.ReplyTo)
	text(8, p.Expiration)
	text(7, p.MessageId)
	if !p.Timestamp.IsZero() {
		flags |= 1 << 6
		props.longlong(uint64(p.Timestamp.Unix()))
	}
	text(5, p.Type)
	text(4, p.UserId)
	text(3, p.AppId)
	e := encoder{}
	e.short(60)
	e.short(0)
	e.longlong(uint64(len(p.Body)))
	e.short(flags)
	return append(e.b, props.b...)
}

func timestamp(seconds uint64) time.Time { return time.Unix(int64(seconds), 0) }
