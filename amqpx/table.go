package amqpx

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A message's headers and properties travel in one frame (128 KiB by default), over
// whose size the broker ends the connection. maxHeaders bounds the encoded size of the
// user's headers, maxAllHeaders that of all.
const (
	maxHeaders    = 100 << 10
	maxAllHeaders = 124 << 10
)

// amqp091 reads no table that is nested deeper or that holds more elements: it ends
// the connection at every delivery. maxHeaderCount leaves room for the headers that
// rabbitdelay and the broker add to those of the user.
const (
	maxTableDepth    = 32
	maxTableElements = 8192
	maxHeaderCount   = 8000
)

// checkHeaders refuses headers of the user and of rabbitdelay's own with which the
// broker would end the connection, or the consumer its own.
func checkHeaders(user, own amqp.Table) error {
	if len(user)+len(own) == 0 {
		return nil
	}
	m := measure{most: maxHeaders}
	count := 0
	for name, v := range user {
		if keptHeader(name) {
			count++
			m.header(name, v)
		}
	}
	if count > maxHeaderCount {
		m.failf("%d headers; expected at most %d: large data belongs in the body", count, maxHeaderCount)
	}
	m.most = maxAllHeaders // what is carried for a foreign publisher may be long
	for name, v := range own {
		m.header(name, v)
	}
	if m.err != nil {
		return &MessageError{"Headers", m.err.Error()}
	}
	return nil
}

// measure adds up the bytes that amqp091 writes for a table, and stops at the first
// value that cannot be written, or read again.
type measure struct {
	size, most int
	name       string // of the header that is measured
	err        error
}

func (m *measure) failf(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// add counts n bytes. What is too long ends the walk: a table may contain itself.
func (m *measure) add(n int) {
	if m.size += n; m.most > 0 && m.size > m.most {
		m.failf("more than %d bytes, the most that a message may have: large data belongs in the body", m.most)
	}
}

// header measures a header with its name.
func (m *measure) header(name string, v any) {
	m.name = name
	m.field(name, v, 0)
}

func (m *measure) field(name string, v any, depth int) {
	if len(name) > 255 {
		m.failf("a name of %d bytes; AMQP allows 255", len(name))
	}
	m.add(1 + len(name))
	m.value(v, depth)
}

func (m *measure) table(t amqp.Table, depth int) {
	m.container(len(t), depth)
	for name, v := range t {
		if m.err != nil {
			return
		}
		m.field(name, v, depth)
	}
}

func (m *measure) array(list []any, depth int) {
	m.container(len(list), depth)
	for i := 0; i < len(list) && m.err == nil; i++ {
		m.value(list[i], depth)
	}
}

// container measures what a table or an array has beside its elements.
func (m *measure) container(elements, depth int) {
	m.add(4)
	switch {
	case elements > maxTableElements:
		m.failf("%q has %d elements in a table or an array; expected at most %d: large data belongs in the body", m.name, elements, maxTableElements)
	case depth > maxTableDepth:
		m.failf("%q has tables or arrays nested deeper than %d levels: large data belongs in the body", m.name, maxTableDepth)
	}
}

func (m *measure) value(v any, depth int) {
	m.add(1)
	switch v := v.(type) {
	case nil:
	case bool, uint8, int8:
		m.add(1)
	case int16, uint16:
		m.add(2)
	case int32, uint32:
		m.add(4)
	case int, int64, time.Time: // an int is written as an int64, see wide
		m.add(8)
	case amqp.Decimal:
		m.add(5)
	case float32:
		m.add(4)
		m.finite(float64(v))
	case float64:
		m.add(8)
		m.finite(v)
	case string:
		m.add(4 + len(v))
	case []byte:
		m.add(4 + len(v))
	case amqp.Table:
		m.table(v, depth+1)
	case []any:
		m.array(v, depth+1)
	default:
		m.failf("%q has a value of the type %T; expected what an AMQP table can hold: bool, integers but uint and uint64, float, string, []byte, time.Time, amqp091.Decimal, amqp091.Table and []any of these", m.name, v)
	}
}

// finite refuses what Erlang has no number for.
func (m *measure) finite(f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		m.failf("%q has the value %v; expected a finite number: RabbitMQ ends the connection over others", m.name, f)
	}
}

// wide returns a header's value with every int in it as an int64. amqp091 writes an
// int in 32 bits and cuts off what is above. What has none is not copied.
func wide(v any) any {
	w, _ := widened(v)
	return w
}

func widened(v any) (w any, changed bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case amqp.Table:
		t := v
		for k, e := range v {
			if w, ok := widened(e); ok {
				if !changed {
					t, changed = maps.Clone(v), true
				}
				t[k] = w
			}
		}
		return t, changed
	case []any:
		list := v
		for i, e := range v {
			if w, ok := widened(e); ok {
				if !changed {
					list, changed = slices.Clone(v), true
				}
				list[i] = w
			}
		}
		return list, changed
	}
	return v, false
}

// usualFrame is RabbitMQ's frame_max, into which whatever checkHeaders takes fits.
const usualFrame = 128 << 10

// checkFrame refuses a message whose headers do not fit into a frame of a connection
// to a broker with a smaller frame_max, which would end that connection.
func checkFrame(most int, p *prepared, ofRoute amqp.Table) error {
	if most == 0 || most >= usualFrame {
		return nil
	}
	headers := p.headers(ofRoute)
	defer giveBack(headers)
	m := measure{size: 128} // the frame itself, an instant, and properties of a fixed length
	m.table(headers, 0)
	x := &p.pub
	for _, s := range []string{x.ContentType, x.ContentEncoding, x.CorrelationId, x.ReplyTo, x.Expiration, x.MessageId, x.Type, x.UserId, x.AppId} {
		m.add(len(s))
	}
	if m.size > most {
		return &MessageError{"Headers", fmt.Sprintf("more than fit into a frame of this broker (its frame_max is %d bytes): large data belongs in the body", most)}
	}
	return nil
}
