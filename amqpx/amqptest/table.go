package amqptest

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// errSyntax is what cannot be read.
var errSyntax = errors.New("malformed frame")

// maxDepth bounds tables in tables; a broker has no bound, but amqp091 one of 32.
const maxDepth = 1000

// decoder reads the values of a frame. After the first mistake all it gives is
// zero, and err says so.
type decoder struct {
	b     []byte
	err   error
	depth int
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errSyntax
		d.b = nil
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

// failed tells whether something could not be read. Whoever reads then does
// nothing, and the channel refuses the method.
func (d *decoder) failed() bool { return d.err != nil }

// number reads n bytes, the highest first.
func (d *decoder) number(n int) uint64 {
	var v uint64
	for _, b := range d.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (d *decoder) octet() uint8     { return uint8(d.number(1)) }
func (d *decoder) short() uint16    { return uint16(d.number(2)) }
func (d *decoder) long() uint32     { return uint32(d.number(4)) }
func (d *decoder) longlong() uint64 { return d.number(8) }
func (d *decoder) shortstr() string { return string(d.take(int(d.octet()))) }
func (d *decoder) longstr() string  { return string(d.take(int(d.long()))) }

// bits reads up to eight flags.
func (d *decoder) bits() [8]bool {
	var out [8]bool
	b := d.octet()
	for i := range out {
		out[i] = b>>i&1 == 1
	}
	return out
}

// nested reads what has its length before it.
func (d *decoder) nested(read func(*decoder)) {
	in := &decoder{b: d.take(int(d.long())), err: d.err, depth: d.depth + 1}
	if in.depth > maxDepth {
		in.err = errSyntax
	}
	for in.err == nil && len(in.b) > 0 {
		read(in)
	}
	if d.err == nil {
		d.err = in.err
	}
}

func (d *decoder) table() amqp.Table {
	t := amqp.Table{}
	d.nested(func(in *decoder) {
		name := in.shortstr()
		t[name] = in.value()
	})
	return t
}

func (d *decoder) value() any {
	switch d.octet() {
	case 't':
		return d.octet() != 0
	case 'b':
		return int8(d.octet())
	case 'B':
		return d.octet()
	case 's', 'U':
		return int16(d.short())
	case 'u':
		return d.short()
	case 'I':
		return int32(d.long())
	case 'i':
		return d.long()
	case 'l', 'L':
		return int64(d.longlong())
	case 'f':
		return math.Float32frombits(d.long())
	case 'd':
		return math.Float64frombits(d.longlong())
	case 'D':
		return amqp.Decimal{Scale: d.octet(), Value: int32(d.long())}
	case 'S':
		return d.longstr()
	case 'x':
		return []byte(d.longstr())
	case 'T':
		return time.Unix(int64(d.longlong()), 0)
	case 'F':
		return d.table()
	case 'A':
		list := []any{}
		d.nested(func(in *decoder) { list = append(list, in.value()) })
		return list
	case 'V':
		return nil
	}
	d.err = errSyntax
	return nil
}

// encoder appends the values of a frame.
type encoder struct{ b []byte }

func (e *encoder) octet(v uint8)     { e.b = append(e.b, v) }
func (e *encoder) short(v uint16)    { e.b = binary.BigEndian.AppendUint16(e.b, v) }
func (e *encoder) long(v uint32)     { e.b = binary.BigEndian.AppendUint32(e.b, v) }
func (e *encoder) longlong(v uint64) { e.b = binary.BigEndian.AppendUint64(e.b, v) }

// shortstr cuts what is longer than 255 bytes, as the broker does.
func (e *encoder) shortstr(s string) {
	s = s[:min(len(s), 255)]
	e.octet(uint8(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) longstr(s string) {
	e.long(uint32(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) bool(v bool) {
	if v {
		e.octet(1)
		return
	}
	e.octet(0)
}

// nested writes the length of what write appends before it.
func (e *encoder) nested(write func()) {
	at := len(e.b)
	e.long(0)
	write()
	binary.BigEndian.PutUint32(e.b[at:], uint32(len(e.b)-at-4))
}

func (e *encoder) table(t amqp.Table) {
	e.nested(func() {
		for name, v := range t {
			e.shortstr(name)
			e.value(v)
		}
	})
}

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case bool:
		e.octet('t')
		e.bool(v)
	case int8:
		e.octet('b')
		e.octet(uint8(v))
	case uint8:
		e.octet('B')
		e.octet(v)
	case int16:
		e.octet('s')
		e.short(uint16(v))
	case uint16:
		e.octet('u')
		e.short(v)
	case int32:
		e.octet('I')
		e.long(uint32(v))
	case uint32:
		e.octet('i')
		e.long(v)
	case int64:
		e.octet('l')
		e.longlong(uint64(v))
	case float32:
		e.octet('f')
		e.long(math.Float32bits(v))
	case float64:
		e.octet('d')
		e.longlong(math.Float64bits(v))
	default:
		e.composed(v)
	}
}

func (e *encoder) composed(v any) {
	switch v := v.(type) {
	case string:
		e.octet('S')
		e.longstr(v)
	case []byte:
		e.octet('x')
		e.longstr(string(v))
	case amqp.Decimal:
		e.octet('D')
		e.octet(v.Scale)
		e.long(uint32(v.Value))
	case time.Time:
		e.octet('T')
		e.longlong(uint64(v.Unix()))
	case amqp.Table:
		e.octet('F')
		e.table(v)
	case []any:
		e.octet('A')
		e.nested(func() {
			for _, x := range v {
				e.value(x)
			}
		})
	default:
		e.octet('V')
	}
}
