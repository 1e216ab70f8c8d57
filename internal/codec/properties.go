package codec

import (
	"encoding/binary"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Properties reads the flags and the properties of the basic class, as the broker encodes them.
func (d *Decoder) Properties() (p amqp.Publishing) {
	flags := d.Short()
	has := func(bit int) bool { return flags>>bit&1 == 1 }
	text := func(bit int, s *string) {
		if has(bit) {
			*s = d.ShortStr()
		}
	}
	text(15, &p.ContentType)
	text(14, &p.ContentEncoding)
	if has(13) {
		p.Headers = d.Table()
	}
	if has(12) {
		p.DeliveryMode = d.Octet()
	}
	if has(11) {
		p.Priority = d.Octet()
	}
	text(10, &p.CorrelationId)
	text(9, &p.ReplyTo)
	text(8, &p.Expiration)
	text(7, &p.MessageId)
	if has(6) {
		p.Timestamp = d.timestamp()
	}
	text(5, &p.Type)
	text(4, &p.UserId)
	text(3, &p.AppId)
	if has(0) || has(1) {
		d.fail(errors.New("the properties have flags that are not defined for the basic class"))
	}
	return p
}

// Properties appends the flags and the properties of the basic class that are set in p.
func (e *Encoder) Properties(p amqp.Publishing) {
	at, flags := len(e.b), uint16(0)
	e.Short(0)
	text := func(bit int, s string) {
		if s != "" {
			flags |= 1 << bit
			e.ShortStr(s)
		}
	}
	octet := func(bit int, v uint8) {
		if v != 0 {
			flags |= 1 << bit
			e.Octet(v)
		}
	}
	text(15, p.ContentType)
	text(14, p.ContentEncoding)
	if p.Headers != nil {
		flags |= 1 << 13
		e.Table(p.Headers)
	}
	octet(12, p.DeliveryMode)
	octet(11, p.Priority)
	text(10, p.CorrelationId)
	text(9, p.ReplyTo)
	text(8, p.Expiration)
	text(7, p.MessageId)
	if !p.Timestamp.IsZero() {
		flags |= 1 << 6
		e.LongLong(uint64(p.Timestamp.Unix()))
	}
	text(5, p.Type)
	text(4, p.UserId)
	text(3, p.AppId)
	binary.BigEndian.PutUint16(e.b[at:], flags)
}
