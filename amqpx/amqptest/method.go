package amqptest

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// method identifies an AMQP method. Its value consists of the class number and the method number, and its String method
// returns AMQP's name, such as "queue.declare".
type method uint32

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

// readMethod returns the method of a method frame and a Decoder for its arguments.
func readMethod(payload []byte) (method, *codec.Decoder) {
	d := codec.NewDecoder(payload)
	return method(uint32(d.Short())<<16 | uint32(d.Short())), d
}

func methodIn(payload []byte) method {
	m, _ := readMethod(payload)
	return m
}

// encode encodes the arguments of a method: numbers, short strings and single flags.
func encode(values ...any) []byte {
	var e codec.Encoder
	for _, v := range values {
		switch v := v.(type) {
		case uint8:
			e.Octet(v)
		case uint16:
			e.Short(v)
		case uint32:
			e.Long(v)
		case uint64:
			e.LongLong(v)
		case string:
			e.ShortStr(v)
		case bool:
			e.Bool(v)
		default:
			panic(fmt.Sprintf("amqptest: cannot encode an argument of type %T", v))
		}
	}
	return e.Bytes()
}

// header returns the payload of a message's header frame.
func header(p amqp.Publishing) []byte {
	var e codec.Encoder
	e.Short(60) // the class basic
	e.Short(0)
	e.LongLong(uint64(len(p.Body)))
	e.Properties(p)
	return e.Bytes()
}
