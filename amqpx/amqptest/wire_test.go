package amqptest

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// FuzzServer checks that a server that receives arbitrary data neither panics nor hangs, and serves the next client.
func FuzzServer(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add(codec.AppendFrame([]byte(greeting), codec.Frame{Kind: codec.FrameMethod, Payload: []byte{0, 10, 0, 40, 1, '/', 0, 0}}))
	f.Add(codec.AppendFrame([]byte(greeting), codec.Frame{Kind: codec.FrameMethod, Channel: 1, Payload: []byte{0, 20, 0, 10, 0}}))
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

// FuzzMethods checks that a server does not panic if it receives methods with arbitrary arguments on an open channel.
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
				srv.do(func() { k.take(codec.Frame{Kind: codec.FrameMethod, Channel: 1, Payload: payload}, nil) })
			}
			_ = c.Close()
		})
	})
}

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pipes("c", "s", 0)
		big := make([]byte, 1<<20)
		if _, err := c.Write(big); err != nil { // does not block, although no data is read
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
		if ne, ok := err.(net.Error); !ok || !ne.Timeout() || time.Since(began) != time.Second { //nolint:errorlint // callers of package net use a type assertion as well
			t.Errorf("Read returned %v after %v, want a timeout after 1s", err, time.Since(began))
		}
		_ = s.SetDeadline(time.Time{})
		_, _ = c.Write([]byte("last"))
		_ = c.Close()
		if rest, err := io.ReadAll(s); string(rest) != "last" || err != nil {
			t.Errorf(`ReadAll after Close: got %q, error %v, want "last" and no error`, rest, err)
		}
		if _, err := s.Write([]byte("x")); err == nil {
			t.Error("Write to a closed connection: got no error, want one")
		}
	})
}
