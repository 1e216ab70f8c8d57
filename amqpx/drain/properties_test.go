package drain

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

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
	b := bytes.Join([][]byte{{0xff, 0xf8}, {1, 'a'}, {1, 'b'}, headers, {1}, {7}, {1, 'c'}, {1, 'd'}, {1, 'e'}, {1, 'f'}, {0, 0, 0, 0, 0, 0, 0, 8}, {1, 'g'}, {1, 'h'}, {1, 'i'}}, nil)
	d, err := properties(b)
	want := amqp.Delivery{
		ContentType: "a", ContentEncoding: "b", DeliveryMode: 1, Priority: 7, CorrelationId: "c", ReplyTo: "d", Expiration: "e", MessageId: "f",
		Timestamp: time.Unix(8, 0), Type: "g", UserId: "h", AppId: "i",
		Headers: amqp.Table{
			"t": true, "b": int8(-1), "B": uint8(255), "s": int16(-2), "u": uint16(0xfffe), "I": int32(-1), "i": uint32(0xffffffff), "l": int64(-1),
			"f": float32(1), "d": 1.0, "D": amqp.Decimal{Scale: 2, Value: 5}, "S": "\xff\x00", "x": []byte{0xff, 0}, "T": time.Unix(9, 0), "V": nil,
			"F": amqp.Table{"n": nil}, "A": []any{false, nil},
		},
	}
	if err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, d, want)
	}
	for n := range b {
		if _, err := properties(b[:n]); err == nil {
			t.Errorf("the first %d bytes were taken for all", n)
		}
	}
}

func FuzzProperties(f *testing.F) {
	f.Add(hexed(f, "0000"))
	f.Add(hexed(f, "2000000000050161740141"))
	f.Add(hexed(f, "20000000000a016141000000024100"))
	f.Add(hexed(f, "ffff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := properties(b)
		if err == nil && d.Headers != nil {
			if err := d.Headers.Validate(); err != nil {
				t.Errorf("%x: headers that cannot be sent: %v", b, err)
			}
		}
	})
}
