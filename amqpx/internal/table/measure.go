package table

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Limits of tables that amqp091 can read. Each time it receives a message with a table that is nested deeper or has
// more elements, it closes the connection.
const (
	MaxDepth    = 32
	MaxElements = 8192
)

// Measure computes how many bytes amqp091 writes for a table. It stops at the first value that cannot be written or
// that could not be read again.
type Measure struct {
	Size int // bytes counted so far
	Most int // upper limit of Size; 0 for no limit
	Err  error
	name string // the header that is being measured
}

// Failf records why the table cannot be written, unless a reason has already been recorded.
func (m *Measure) Failf(format string, args ...any) {
	if m.Err == nil {
		m.Err = fmt.Errorf(format, args...)
	}
}

// Add counts n bytes. Exceeding the limit stops the traversal, which would otherwise not end for a table that contains
// itself.
func (m *Measure) Add(n int) {
	if m.Size += n; m.Most > 0 && m.Size > m.Most {
		m.Failf("more than %d bytes of headers; expected at most that many: large data belongs in the body", m.Most)
	}
}

// Header measures a header with its name.
func (m *Measure) Header(name string, v any) {
	m.name = name
	m.field(name, v, 0)
}

func (m *Measure) field(name string, v any, depth int) {
	if len(name) > 255 {
		m.Failf("a header name of %d bytes; expected at most 255", len(name))
	}
	m.Add(1 + len(name))
	m.Value(v, depth)
}

// Table measures a table. The parameter depth is the number of tables and arrays that contain it.
func (m *Measure) Table(t amqp.Table, depth int) {
	m.container(len(t), depth)
	for name, v := range t {
		if m.Err != nil {
			return
		}
		m.field(name, v, depth)
	}
}

// container measures a table or an array without its elements.
func (m *Measure) container(elements, depth int) {
	m.Add(4)
	switch {
	case elements > MaxElements:
		m.Failf("%q has %d elements in a table or an array; expected at most %d: large data belongs in the body", m.name, elements, MaxElements)
	case depth > MaxDepth:
		m.Failf("%q has tables or arrays nested deeper than %d levels: large data belongs in the body", m.name, MaxDepth)
	}
}

// Value measures a value. The parameter depth is the number of tables and arrays that contain it.
func (m *Measure) Value(v any, depth int) {
	m.Add(1)
	switch v := v.(type) {
	case nil:
	case bool, uint8, int8:
		m.Add(1)
	case int16, uint16:
		m.Add(2)
	case int32, uint32:
		m.Add(4)
	case int, int64, time.Time: // an int is written as an int64, see Wide
		m.Add(8)
	case amqp.Decimal:
		m.Add(5)
	case float32:
		m.Add(4)
		m.finite(float64(v))
	case float64:
		m.Add(8)
		m.finite(v)
	case string:
		m.Add(4 + len(v))
	case []byte:
		m.Add(4 + len(v))
	case amqp.Table:
		m.Table(v, depth+1)
	case []any:
		m.container(len(v), depth+1)
		for i := 0; i < len(v) && m.Err == nil; i++ {
			m.Value(v[i], depth+1)
		}
	default:
		m.Failf("%q has a value of the type %T; expected a type that AMQP tables support: bool, integers except uint and uint64, float, string, []byte, time.Time, amqp091.Decimal, amqp091.Table and []any of these", m.name, v)
	}
}

// finite rejects values that Erlang's floats cannot represent.
func (m *Measure) finite(f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		m.Failf("%q has the value %v; expected a finite number: RabbitMQ closes the connection for other values", m.name, f)
	}
}

// Wide returns a header's value with every int converted to an int64. amqp091 writes an int as 32 bits and drops the
// higher bits. A value that contains no int is returned without copying it.
func Wide(v any) any {
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
