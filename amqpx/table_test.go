package amqpx

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// nested is a value with so many levels of tables or arrays in the table of headers.
func nested(levels int, array bool) (v any) {
	for range levels {
		if array {
			v = []any{v}
		} else {
			v = amqp.Table{"t": v}
		}
	}
	return v
}

// many is a table of so many elements.
func many(n int) amqp.Table {
	t := make(amqp.Table, n)
	for i := range n {
		t[string(binary.BigEndian.AppendUint16(nil, uint16(i)))] = nil
	}
	return t
}

// Whatever amqp091 cannot read at the other end is refused before it is sent.
func TestCheckRefusesWhatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		headers amqp.Table
		says    string // "" for what can be sent
	}{
		"deep tables":        {amqp.Table{"a": nested(32, false)}, ""},
		"too deep tables":    {amqp.Table{"a": nested(33, false)}, "deeper than 32"},
		"deep arrays":        {amqp.Table{"a": nested(32, true)}, ""},
		"too deep arrays":    {amqp.Table{"a": nested(33, true)}, "deeper than 32"},
		"long array":         {amqp.Table{"a": make([]any, 8192)}, ""},
		"too long array":     {amqp.Table{"a": make([]any, 8193)}, "8193 elements"},
		"array in a table":   {amqp.Table{"a": amqp.Table{"b": make([]any, 8193)}}, "8193 elements"},
		"large table":        {amqp.Table{"a": many(8192)}, ""},
		"too large table":    {amqp.Table{"a": many(8193)}, "8193 elements"},
		"many headers":       {many(8000), ""},
		"too many headers":   {many(8001), "8001 headers"},
		"those that go":      {amqp.Table{"x-death": nested(40, true), "rabbitdelay-due": make([]any, 9000)}, ""},
		"arrays of nothing":  {amqp.Table{"a": arraysOfNothing(90_000)}, "more than 102400 bytes"},
		"type that is none":  {amqp.Table{"a": []any{amqp.Table{"b": uint64(1)}}}, "uint64"},
		"exactly the most":   {amqp.Table{"a": strings.Repeat("x", maxHeaders-7)}, ""},
		"one more than most": {amqp.Table{"a": strings.Repeat("x", maxHeaders-6)}, "more than 102400 bytes"},
	} {
		err := (&Message{Queue: "q", Headers: c.headers}).Check()
		if (c.says == "") != (err == nil) || err != nil && (!errors.Is(err, ErrMessage) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// arraysOfNothing are empty arrays in arrays that are not too long.
func arraysOfNothing(n int) []any {
	var all []any
	for ; n > 0; n -= 8000 {
		some := make([]any, min(n, 8000))
		for i := range some {
			some[i] = []any{}
		}
		all = append(all, some)
	}
	return all
}

// aValue is whatever a header can hold.
func aValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Uint8().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Int().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(),
		rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		rapid.Map(rapid.Int64(), func(n int64) any { return time.Unix(n, 0) }),
		rapid.Map(rapid.Int32(), func(n int32) any { return amqp.Decimal{Scale: uint8(n), Value: n} }),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.SliceOfN(aValue(depth-1), 0, 5).AsAny(),
			rapid.Map(aTable(depth-1), func(t amqp.Table) any { return t }))
	}
	return rapid.OneOf(kinds...)
}

func aTable(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Map(rapid.MapOfN(rapid.StringMatching("[a-z]{0,5}"), aValue(depth), 0, 5), func(m map[string]any) amqp.Table { return m })
}

// tap keeps what is written.
type tap struct {
	net.Conn
	written bytes.Buffer
}

func (r *tap) Write(p []byte) (int, error) {
	r.written.Write(p)
	return r.Conn.Write(p)
}

// The headers of a message are as long as they are counted, what is written can be
// read, and every int arrives as it was.
func TestHeadersAreMeasuredAsWritten(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	var wire *tap
	conn, err := amqp.DialConfig(srv.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := srv.Dial(context.Background(), network, addr)
		wire = &tap{Conn: c}
		return wire, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		given := aTable(4).Draw(t, "headers")
		given["n"] = 5_000_000_000
		m := measure{}
		m.table(given, 0)
		headers := userHeaders(given)
		wire.written.Reset()
		if err := ch.Publish("", "nowhere", false, false, amqp.Publishing{Headers: headers}); err != nil {
			t.Fatal(err)
		}
		frame := wire.written.Bytes()
		frame = frame[frameSize(frame):] // after basic.publish
		frame = frame[:frameSize(frame)]
		table, _ := headersOf(frame)
		if m.err == nil && m.size != len(table) {
			t.Fatalf("counted %d bytes, %d were written: %v", m.size, len(table), given)
		}
		if rest, err := skipTable(table, 0); err != nil || len(rest) > 0 {
			t.Fatalf("%d bytes are left over: %v", len(rest), err)
		}
		if got := given["n"]; got != 5_000_000_000 || headers["n"] != int64(5_000_000_000) {
			t.Fatalf("%v became %v", got, headers["n"])
		}
	})
}
