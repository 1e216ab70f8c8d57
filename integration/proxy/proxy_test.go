package proxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

func frame(typ byte, class, method uint16, payload int) []byte {
	body := binary.BigEndian.AppendUint16(nil, class)
	body = binary.BigEndian.AppendUint16(body, method)
	body = append(body, bytes.Repeat([]byte{0xCE}, payload)...)
	b := []byte{typ, 0, 1}
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(append(b, body...), 0xCE)
}

// The proxy finds the same frames regardless of how the stream is split into pieces.
func TestFramesInPieces(t *testing.T) {
	var stream []byte
	stream = append(stream, "AMQP\x00\x00\x09\x01"...)
	stream = append(stream, frame(1, 60, 40, 10)...)
	stream = append(stream, frame(3, 0, 0, 300)...)
	stream = append(stream, 8, 0, 0, 0, 0, 0, 0, 0xCE) // heartbeat
	publish2 := len(stream)
	stream = append(stream, frame(1, 60, 40, 0)...)
	for piece := 1; piece <= len(stream); piece++ {
		r := &frames{direction: ToBroker, skip: 8}
		var seen []Frame
		var sent []byte
		publishes := 0
		for i := 0; i < len(stream); i += piece {
			send, end := r.feed(stream[i:min(i+piece, len(stream))], func(f Frame) bool {
				seen = append(seen, f)
				if f.Is(ToBroker, BasicPublish) {
					publishes++
				}
				return publishes == 2
			})
			sent = append(sent, send...)
			if end {
				break
			}
		}
		if len(seen) != 4 || seen[1].Type != 3 || seen[2].Type != 8 || publishes != 2 {
			t.Fatalf("pieces of %d bytes: got the frames %+v, want 4, the second of type 3 and the third of type 8, and 2 publishes", piece, seen)
		}
		if len(sent) < publish2-headLen || len(sent) > publish2+headLen || !bytes.HasPrefix(stream, sent) {
			t.Fatalf("pieces of %d bytes: forwarded %d bytes, want the stream up to about %d", piece, len(sent), publish2)
		}
	}
}

func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return ln.Addr().String()
}

func TestCutStallAndRefuse(t *testing.T) {
	p, err := New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	say := func(deadline time.Duration) error {
		_ = c.SetDeadline(time.Now().Add(deadline))
		if _, err := c.Write([]byte{8, 0, 0, 0, 0, 0, 0, 0xCE}); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 8))
		return err
	}
	if err := say(servers.Patience); err != nil {
		t.Fatal(err)
	}
	p.Stall(ToClient, true)
	if err := say(50 * time.Millisecond); err == nil {
		t.Fatal("got an answer on a stalled connection, want a timeout")
	}
	p.Stall(ToClient, false)
	_ = c.SetDeadline(time.Now().Add(servers.Patience))
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		t.Fatalf("reading after the stall: got %v, want no error", err)
	}
	p.Refuse(true)
	p.Cut()
	_ = c.SetDeadline(time.Now().Add(servers.Patience))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("reading from a cut connection: got no error")
	}
	if c2, err := net.Dial("tcp", p.Addr()); err == nil {
		_ = c2.SetDeadline(time.Now().Add(servers.Patience))
		if _, err := c2.Read(make([]byte, 1)); err == nil {
			t.Fatal("reading from a refused connection: got no error")
		}
		_ = c2.Close()
	}
}
