package codec

import (
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxDepth limits how deeply tables may be nested, so that decoding cannot exhaust the stack. Brokers have no limit,
// and amqp091 reads up to 32 levels.
const maxDepth = 1000

// Common reasons why bytes cannot be decoded.
var (
	errShort = errors.New("unexpected end of data")
	errDeep  = fmt.Errorf("tables nested deeper than %d levels", maxDepth)
)

// Decoder decodes AMQP values from the beginning of a byte slice. After the first error every value is zero, and Err
// returns the error.
type Decoder struct {
	b     []byte
	err   error
	depth int
}

// NewDecoder returns a Decoder that reads from b without copying it.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// Err returns the first error, or nil if there was none.
func (d *Decoder) Err() error { return d.err }

// Failed reports whether there was an error.
func (d *Decoder) Failed() bool { return d.err != nil }

func (d *Decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *Decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

// number reads n bytes in big-endian order.
func (d *Decoder) number(n int) uint64 {
	var v uint64
	for _, b := range d.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

// Octet reads one byte.
func (d *Decoder) Octet() uint8 { return uint8(d.number(1)) }

// Short reads two bytes.
func (d *Decoder) Short() uint16 { return uint16(d.number(2)) }

// Long reads four bytes.
func (d *Decoder) Long() uint32 { return uint32(d.number(4)) }

// LongLong reads eight bytes.
func (d *Decoder) LongLong() uint64 { return d.number(8) }

// ShortStr reads a string of at most 255 bytes, which is preceded by its length in one byte.
func (d *Decoder) ShortStr() string { return string(d.take(int(d.Octet()))) }

// LongStr reads a string that is preceded by its length in four bytes.
func (d *Decoder) LongStr() string { return string(d.take(int(d.Long()))) }

// Bits reads a byte of flags. The lowest bit comes first.
func (d *Decoder) Bits() [8]bool {
	var out [8]bool
	b := d.Octet()
	for i := range out {
		out[i] = b>>i&1 == 1
	}
	return out
}

// readNested reads a length and calls read until that many bytes are consumed.
func (d *Decoder) readNested(read func(*Decoder)) {
	in := &Decoder{b: d.take(int(d.Long())), err: d.err, depth: d.depth + 1}
	if in.depth > maxDepth {
		in.fail(errDeep)
	}
	for len(in.b) > 0 {
		read(in)
	}
	if in.err != nil {
		d.fail(in.err)
	}
}

// Table reads a field table.
func (d *Decoder) Table() amqp.Table {
	t := amqp.Table{}
	d.readNested(func(in *Decoder) {
		name := in.ShortStr()
		t[name] = in.readValue()
	})
	return t
}

func (d *Decoder) readValue() any {
	switch kind := d.Octet(); kind {
	case 't':
		return d.Octet() != 0
	case 'b':
		return int8(d.Octet())
	case 'B':
		return d.Octet()
	case 's', 'U':
		return int16(d.Short())
	case 'u':
		return d.Short()
	case 'I':
		return int32(d.Long())
	case 'i':
		return d.Long()
	case 'l', 'L':
		return int64(d.LongLong())
	case 'f':
		return math.Float32frombits(d.Long())
	case 'd':
		return math.Float64frombits(d.LongLong())
	case 'D':
		return amqp.Decimal{Scale: d.Octet(), Value: int32(d.Long())}
	case 'S':
		return d.LongStr()
	case 'x':
		return []byte(d.LongStr())
	case 'T':
		return d.timestamp()
	case 'F':
		return d.Table()
	case 'A':
		list := []any{}
		d.readNested(func(in *Decoder) { list = append(list, in.readValue()) })
		return list
	case 'V':
		return nil
	default:
		d.fail(fmt.Errorf("a value has the unknown type %q", kind))
		return nil
	}
}

func (d *Decoder) timestamp() time.Time { return time.Unix(int64(d.LongLong()), 0) }
