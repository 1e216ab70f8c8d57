package table

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// aValue generates any value that a header can have.
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

// tap records the bytes written to a connection.
type tap struct {
	net.Conn
	written bytes.Buffer
}

func (r *tap) Write(p []byte) (int, error) {
	r.written.Write(p)
	return r.Conn.Write(p)
}

// The measured size of headers equals the number of bytes that amqp091 writes. The written headers can be read, and
// an int is written with 64 bits.
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
		m := Measure{}
		m.Table(given, 0)
		headers, _ := Wide(given).(amqp.Table)
		wire.written.Reset()
		if err := ch.Publish("", "nowhere", false, false, amqp.Publishing{Headers: headers}); err != nil {
			t.Fatal(err)
		}
		frame := wire.written.Bytes()
		frame = frame[frameSize(frame):] // skip the method frame of basic.publish
		frame = frame[:frameSize(frame)]
		table, _ := headersOf(frame)
		if m.Err == nil && m.Size != len(table) {
			t.Fatalf("Measure.Table: got Size %d, want %d, the bytes written for %v", m.Size, len(table), given)
		}
		if rest, err := skipTable(table, 0); err != nil || len(rest) > 0 {
			t.Fatalf("reading the written headers: got %d bytes left over, %v, want 0 and no error", len(rest), err)
		}
		if got := given["n"]; got != 5_000_000_000 || headers["n"] != int64(5_000_000_000) {
			t.Fatalf("Wide: got the header %v for the value %v, want int64 5000000000 and an unchanged value", headers["n"], got)
		}
	})
}
