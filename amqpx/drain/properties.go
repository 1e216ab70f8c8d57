package drain

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxDepth bounds tables in tables.
const maxDepth = 32

var errShort = errors.New("the properties end too soon")

// reader takes AMQP's values off bytes. After the first mistake it gives zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) octet() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) short() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) long() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) longlong() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) shortstr() string     { return string(r.take(uint64(r.octet()))) }
func (r *reader) longstr() []byte      { return r.take(uint64(r.long())) }
func (r *reader) timestamp() time.Time { return time.Unix(int64(r.longlong()), 0) }

func (r *reader) table(depth int) amqp.Table {
	t := amqp.Table{}
	in := &reader{b: r.longstr()}
	for len(in.b) > 0 {
		name := in.shortstr()
		t[name] = in.value(depth)
	}
	if in.err != nil {
		r.fail(in.err)
	}
	return t
}

func (r *reader) array(depth int) []any {
	list := []any{}
	in := &reader{b: r.longstr()}
	for len(in.b) > 0 {
		list = append(list, in.value(depth))
	}
	if in.err != nil {
		r.fail(in.err)
	}
	return list
}

func (r *reader) value(depth int) any {
	switch kind := r.octet(); kind {
	case 't':
		return r.octet() != 0
	case 'b':
		return int8(r.octet())
	case 'B':
		return r.octet()
	case 's':
		return int16(r.short())
	case 'u':
		return r.short()
	case 'I':
		return int32(r.long())
	case 'i':
		return r.long()
	case 'l', 'L':
		return int64(r.longlong())
	case 'f':
		return math.Float32frombits(r.long())
	case 'd':
		return math.Float64frombits(r.longlong())
	case 'D':
		return amqp.Decimal{Scale: r.octet(), Value: int32(r.long())}
	case 'S':
		return string(r.longstr())
	case 'x':
		return append([]byte{}, r.longstr()...)
	case 'T':
		return r.timestamp()
	case 'V':
		return nil
	case 'A', 'F':
		if depth == maxDepth {
			r.fail(fmt.Errorf("tables in tables are deeper than %d", maxDepth))
			return nil
		}
		if kind == 'A' {
			return r.array(depth + 1)
		}
		return r.table(depth + 1)
	default:
		r.fail(fmt.Errorf("a header has the unknown type %q", kind))
		return nil
	}
}

// properties reads the flags and the properties of basic, as the broker encodes them.
func properties(b []byte) (d amqp.Delivery, err error) {
	r := &reader{b: b}
	flags := r.short()
	has := func(bit int) bool { return flags>>bit&1 == 1 }
	text := func(bit int, s *string) {
		if has(bit) {
			*s = r.shortstr()
		}
	}
	text(15, &d.ContentType)
	text(14, &d.ContentEncoding)
	if has(13) {
		d.Headers = r.table(0)
	}
	if has(12) {
		d.DeliveryMode = r.octet()
	}
	if has(11) {
		d.Priority = r.octet()
	}
	text(10, &d.CorrelationId)
	text(9, &d.ReplyTo)
	text(8, &d.Expiration)
	text(7, &d.MessageId)
	if has(6) {
		d.Timestamp = r.timestamp()
	}
	text(5, &d.Type)
	text(4, &d.UserId)
	text(3, &d.AppId)
	if has(0) || has(1) {
		r.fail(errors.New("the properties have flags that basic does not have"))
	}
	return d, r.err
}
