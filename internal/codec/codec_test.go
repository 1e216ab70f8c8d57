package codec

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// Any bytes can be read to their end or to an error, without a panic and without a payload that is longer than the
// input.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 11, frameEnd})
	f.Add([]byte{1, 0, 0, 255, 255, 255, 255, 0})
	var e Encoder
	e.Properties(amqp.Publishing{Headers: amqp.Table{"a": []any{int64(1), "x"}}, MessageId: "m"})
	f.Add(AppendFrame(nil, Frame{FrameHeader, 1, e.Bytes()}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			fr, err := ReadFrame(r, 1<<20)
			if err != nil {
				break
			}
			if len(fr.Payload) > len(b) {
				t.Fatalf("a frame has a payload of %d bytes, want at most the %d bytes of the input", len(fr.Payload), len(b))
			}
			NewDecoder(fr.Payload).Properties()
			NewDecoder(fr.Payload).Table()
		}
	})
}

func values() *rapid.Generator[any] {
	return rapid.OneOf(
		rapid.Map(rapid.Int64(), func(v int64) any { return v }), rapid.Map(rapid.Int32(), func(v int32) any { return v }),
		rapid.Map(rapid.Int16(), func(v int16) any { return v }), rapid.Map(rapid.Int8(), func(v int8) any { return v }),
		rapid.Map(rapid.Uint8(), func(v uint8) any { return v }), rapid.Map(rapid.Uint16(), func(v uint16) any { return v }),
		rapid.Map(rapid.Uint32(), func(v uint32) any { return v }), rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }), rapid.Map(rapid.Float32(), func(v float32) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }), rapid.Just[any](nil),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return append([]byte{}, v...) }),
		rapid.Map(rapid.Int64Range(0, 1<<33), func(v int64) any { return time.Unix(v, 0) }),
		rapid.Map(rapid.Int32(), func(v int32) any { return amqp.Decimal{Scale: 2, Value: v} }),
	)
}

// Values are unchanged after encoding and decoding, including nested tables.
func TestTablesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.StringN(0, 20, 200)
		inner := amqp.Table(rapid.MapOfN(names, values(), 0, 5).Draw(t, "inner"))
		table := amqp.Table(rapid.MapOfN(names, values(), 0, 5).Draw(t, "table"))
		table["inner"], table["list"] = inner, append([]any{inner}, rapid.SliceOfN(values(), 0, 5).Draw(t, "list")...)
		var e Encoder
		e.Table(table)
		d := NewDecoder(e.Bytes())
		if got := d.Table(); d.Err() != nil || !reflect.DeepEqual(got, table) {
			t.Fatalf("decoding: got the table %#v, %v, want %#v and no error", got, d.Err(), table)
		}
	})
}

// The decoder limits the nesting of tables to avoid a stack overflow.
func TestTablesEnd(t *testing.T) {
	var e Encoder
	var nest func(n int)
	nest = func(n int) {
		e.nested(func() {
			if n > 0 {
				e.ShortStr("t")
				e.Octet('F')
				nest(n - 1)
			}
		})
	}
	nest(1000)
	d := NewDecoder(e.Bytes())
	if d.Table(); d.Err() == nil {
		t.Error("a table with a depth of 1000: got no error, want one")
	}
}

func hexed(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fieldTable(entries ...[]byte) []byte {
	all := bytes.Join(entries, nil)
	return append([]byte{0, 0, byte(len(all) >> 8), byte(len(all))}, all...)
}

func TestProperties(t *testing.T) {
	entry := func(name string, value ...byte) []byte {
		return append(append([]byte{byte(len(name))}, name...), value...)
	}
	headers := fieldTable(
		entry("t", 't', 1), entry("b", 'b', 0xff), entry("B", 'B', 0xff), entry("s", 's', 0xff, 0xfe), entry("u", 'u', 0xff, 0xfe),
		entry("I", 'I', 0xff, 0xff, 0xff, 0xff), entry("i", 'i', 0xff, 0xff, 0xff, 0xff), entry("l", 'l', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		entry("f", 'f', 0x3f, 0x80, 0, 0), entry("d", 'd', 0x3f, 0xf0, 0, 0, 0, 0, 0, 0), entry("D", 'D', 2, 0, 0, 0, 5),
		entry("S", 'S', 0, 0, 0, 2, 0xff, 0x00), entry("x", 'x', 0, 0, 0, 2, 0xff, 0x00), entry("T", 'T', 0, 0, 0, 0, 0, 0, 0, 9),
		entry("V", 'V'), entry("F", append([]byte{'F'}, fieldTable(entry("n", 'V'))...)...), entry("A", 'A', 0, 0, 0, 3, 't', 0, 'V'),
	)
	b := bytes.Join([][]byte{
		{0xff, 0xf8}, {1, 'a'}, {1, 'b'}, headers, {1}, {7}, {1, 'c'}, {1, 'd'}, {1, 'e'}, {1, 'f'},
		{0, 0, 0, 0, 0, 0, 0, 8}, {1, 'g'}, {1, 'h'}, {1, 'i'},
	}, nil)
	d := NewDecoder(b)
	got := d.Properties()
	want := amqp.Publishing{
		ContentType: "a", ContentEncoding: "b", DeliveryMode: 1, Priority: 7, CorrelationId: "c", ReplyTo: "d", Expiration: "e", MessageId: "f",
		Timestamp: time.Unix(8, 0), Type: "g", UserId: "h", AppId: "i",
		Headers: amqp.Table{
			"t": true, "b": int8(-1), "B": uint8(255), "s": int16(-2), "u": uint16(0xfffe), "I": int32(-1), "i": uint32(0xffffffff), "l": int64(-1),
			"f": float32(1), "d": 1.0, "D": amqp.Decimal{Scale: 2, Value: 5}, "S": "\xff\x00", "x": []byte{0xff, 0}, "T": time.Unix(9, 0), "V": nil,
			"F": amqp.Table{"n": nil}, "A": []any{false, nil},
		},
	}
	if d.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the decoded properties:\ngot  %+v, %v\nwant %+v, no error", got, d.Err(), want)
	}
	var again Encoder
	again.Properties(got)
	if back := NewDecoder(again.Bytes()); !reflect.DeepEqual(back.Properties(), want) || back.Err() != nil {
		t.Errorf("after encoding again: got %+v, %v, want %+v and no error", NewDecoder(again.Bytes()).Properties(), back.Err(), want)
	}
	for n := range b {
		d := NewDecoder(b[:n])
		if d.Properties(); d.Err() == nil {
			t.Errorf("decoding the first %d of %d bytes: got no error, want one", n, len(b))
		}
	}
}

func FuzzProperties(f *testing.F) {
	f.Add(hexed(f, "0000"))
	f.Add(hexed(f, "2000000000050161740141"))
	f.Add(hexed(f, "20000000000a016141000000024100"))
	f.Add(hexed(f, "ffff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := NewDecoder(b)
		if p := d.Properties(); d.Err() == nil && p.Headers != nil {
			if err := p.Headers.Validate(); err != nil {
				t.Errorf("decoding %x: got headers that fail with %v, want valid ones", b, err)
			}
		}
	})
}
