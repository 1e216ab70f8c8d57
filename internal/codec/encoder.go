package codec

import (
	"encoding/binary"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Encoder appends AMQP values. The zero Encoder is empty and ready to use.
type Encoder struct{ b []byte }

// Bytes returns the appended bytes.
func (e *Encoder) Bytes() []byte { return e.b }

// Octet appends one byte.
func (e *Encoder) Octet(v uint8) { e.b = append(e.b, v) }

// Short appends two bytes.
func (e *Encoder) Short(v uint16) { e.b = binary.BigEndian.AppendUint16(e.b, v) }

// Long appends four bytes.
func (e *Encoder) Long(v uint32) { e.b = binary.BigEndian.AppendUint32(e.b, v) }

// LongLong appends eight bytes.
func (e *Encoder) LongLong(v uint64) { e.b = binary.BigEndian.AppendUint64(e.b, v) }

// ShortStr appends a string, preceded by its length in one byte. It truncates a string that is longer than 255 bytes,
// as the broker does.
func (e *Encoder) ShortStr(s string) {
	s = s[:min(len(s), 255)]
	e.Octet(uint8(len(s)))
	e.b = append(e.b, s...)
}

// LongStr appends a string, preceded by its length in four bytes.
func (e *Encoder) LongStr(s string) {
	e.Long(uint32(len(s)))
	e.b = append(e.b, s...)
}

// Bool appends a byte, 1 or 0.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Octet(1)
		return
	}
	e.Octet(0)
}

// nested appends the output of write, preceded by its length.
func (e *Encoder) nested(write func()) {
	at := len(e.b)
	e.Long(0)
	write()
	binary.BigEndian.PutUint32(e.b[at:], uint32(len(e.b)-at-4))
}

// Table appends a field table. A value of a type that AMQP does not have is encoded as void.
func (e *Encoder) Table(t amqp.Table) {
	e.nested(func() {
		for name, v := range t {
			e.ShortStr(name)
			e.value(v)
		}
	})
}

func (e *Encoder) value(v any) {
	switch v := v.(type) {
	case bool:
		e.Octet('t')
		e.Bool(v)
	case int8:
		e.Octet('b')
		e.Octet(uint8(v))
	case uint8:
		e.Octet('B')
		e.Octet(v)
	case int16:
		e.Octet('s')
		e.Short(uint16(v))
	case uint16:
		e.Octet('u')
		e.Short(v)
	case int32:
		e.Octet('I')
		e.Long(uint32(v))
	case uint32:
		e.Octet('i')
		e.Long(v)
	case int64:
		e.Octet('l')
		e.LongLong(uint64(v))
	case float32:
		e.Octet('f')
		e.Long(math.Float32bits(v))
	case float64:
		e.Octet('d')
		e.LongLong(math.Float64bits(v))
	case string:
		e.Octet('S')
		e.LongStr(v)
	case []byte:
		e.Octet('x')
		e.LongStr(string(v))
	case amqp.Decimal:
		e.Octet('D')
		e.Octet(v.Scale)
		e.Long(uint32(v.Value))
	case time.Time:
		e.Octet('T')
		e.LongLong(uint64(v.Unix()))
	case amqp.Table:
		e.Octet('F')
		e.Table(v)
	case []any:
		e.Octet('A')
		e.nested(func() {
			for _, x := range v {
				e.value(x)
			}
		})
	default:
		e.Octet('V')
	}
}
