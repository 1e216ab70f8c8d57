package amqptest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

// Hostile bytes are read to an end, with an error or without, and never cause
// more to be allocated than they are.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 11, frameEnd})
	f.Add([]byte{1, 0, 0, 255, 255, 255, 255, 0})
	f.Add(appendFrame(nil, frameHeader, 1, header(amqp.Publishing{Headers: amqp.Table{"a": []any{int64(1), "x"}}, MessageId: "m"})))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			fr, err := readFrame(r, 1<<20)
			if err != nil {
				break
			}
			if len(fr.payload) > len(b) {
				t.Fatalf("%d bytes of payload from %d", len(fr.payload), len(b))
			}
			_, _, _ = properties(fr.payload)
			(&decoder{b: fr.payload}).table()
		}
	})
}

// A server that gets anything at all after the greeting neither panics nor hangs,
// and serves the next client.
func FuzzServer(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add(appendFrame([]byte(greeting), frameMethod, 0, []byte{0, 10, 0, 40, 1, '/', 0, 0}))
	f.Add(appendFrame([]byte(greeting), frameMethod, 1, []byte{0, 20, 0, 10, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		synctest.Test(t, func(t *testing.T) {
			srv := NewServer(Options{})
			defer srv.Close()
			c, err := srv.Dial(context.Background(), "tcp", "")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(b)
			synctest.Wait()
			_ = c.Close()
			conn, err := srv.Connect()
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		})
	})
}

// Methods with arguments of any kind, on a channel that is open.
func FuzzMethods(f *testing.F) {
	for m := range methodNames {
		f.Add(uint16(m>>16), uint16(m), []byte{0, 0, 1, 'q', 0, 0, 0, 0, 0})
		f.Add(uint16(m>>16), uint16(m), []byte{})
	}
	f.Fuzz(func(t *testing.T, class, id uint16, args []byte) {
		synctest.Test(t, func(t *testing.T) {
			srv := NewServer(Options{Plugin: true})
			defer srv.Close()
			c, s := pipes("fuzz", host, 0)
			k := newConn(srv, s, 1)
			srv.conns[k] = struct{}{}
			srv.do(func() {
				k.user, k.vhostName, k.vhost, k.open, k.frameMax = srv.users["guest"], "/", srv.broker.VHost("/"), true, 4096
			})
			for _, payload := range [][]byte{{0, 20, 0, 10, 0}, append([]byte{byte(class >> 8), byte(class), byte(id >> 8), byte(id)}, args...)} {
				srv.do(func() { k.take(frame{frameMethod, 1, payload}, nil) })
			}
			_ = c.Close()
		})
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

// What is written is read again, tables in tables too.
func TestTablesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.StringN(0, 20, 200)
		inner := amqp.Table(rapid.MapOfN(names, values(), 0, 5).Draw(t, "inner"))
		table := amqp.Table(rapid.MapOfN(names, values(), 0, 5).Draw(t, "table"))
		table["inner"], table["list"] = inner, append([]any{inner}, rapid.SliceOfN(values(), 0, 5).Draw(t, "list")...)
		var e encoder
		e.table(table)
		d := &decoder{b: e.b}
		if got := d.table(); d.err != nil || !reflect.DeepEqual(got, table) {
			t.Fatalf("%v: %#v came back as %#v", d.err, table, got)
		}
	})
}

// Tables nest no deeper than the stack bears.
func TestTablesEnd(t *testing.T) {
	var e encoder
	var nest func(n int)
	nest = func(n int) {
		e.nested(func() {
			if n > 0 {
				e.shortstr("t")
				e.octet('F')
				nest(n - 1)
			}
		})
	}
	nest(1000)
	d := &decoder{b: e.b}
	if d.table(); d.err == nil {
		t.Error("a table of a thousand tables was read")
	}
}

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pipes("c", "s", 0)
		big := make([]byte, 1<<20)
		if _, err := c.Write(big); err != nil { // nobody reads
			t.Fatal(err)
		}
		if err := s.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, big); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := s.Read(big)
		if ne, ok := err.(net.Error); !ok || !ne.Timeout() || time.Since(began) != time.Second { //nolint:errorlint // as net's own callers look
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		_ = s.SetDeadline(time.Time{})
		_, _ = c.Write([]byte("last"))
		_ = c.Close()
		if rest, err := io.ReadAll(s); string(rest) != "last" || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		if _, err := s.Write([]byte("x")); err == nil {
			t.Error("written to nobody")
		}
	})
}
