package amqpx

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// nested returns a value that adds the given number of levels of tables or arrays to the headers.
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

// many returns a table with the given number of elements.
func many(n int) amqp.Table {
	t := make(amqp.Table, n)
	for i := range n {
		t[string(binary.BigEndian.AppendUint16(nil, uint16(i)))] = nil
	}
	return t
}

// Headers that a receiver could not read with amqp091 are refused before they are sent.
func TestCheckRefusesUnreadableHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		headers amqp.Table
		says    string // "" for headers that can be sent
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
		"removed headers":    {amqp.Table{"x-death": nested(40, true), "rabbitdelay-due": make([]any, 9000)}, ""},
		"many empty arrays":  {amqp.Table{"a": arraysOfNothing(90_000)}, "more than 102400 bytes"},
		"unsupported type":   {amqp.Table{"a": []any{amqp.Table{"b": uint64(1)}}}, "uint64"},
		"largest size":       {amqp.Table{"a": strings.Repeat("x", header.MaxOfUser-7)}, ""},
		"one byte too large": {amqp.Table{"a": strings.Repeat("x", header.MaxOfUser-6)}, "more than 102400 bytes"},
	} {
		err := (&Message{Queue: "q", Headers: c.headers}).Check()
		if (c.says == "") != (err == nil) || err != nil && (!errors.Is(err, ErrMessage) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf(`%s: Check returned %v, want ErrMessage with %q ("" means no error)`, name, err, c.says)
		}
	}
}

// arraysOfNothing returns n empty arrays, in arrays that each have an allowed length.
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
