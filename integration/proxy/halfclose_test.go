package proxy

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

func TestHalfClose(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p, err := New(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	broker, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	for _, c := range []net.Conn{client, broker} {
		if err := c.SetDeadline(time.Now().Add(servers.Patience)); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
	}
	// After one byte has passed through, both sides of the proxy are connected.
	one := make([]byte, 1)
	if _, err := broker.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, one); err != nil {
		t.Fatal(err)
	}
	p.HalfClose(ToClient)
	if _, err := client.Read(one); !errors.Is(err, io.EOF) {
		t.Fatalf("the client's read after HalfClose: got error %v, want io.EOF", err)
	}
	// The proxy passes on an AMQP protocol header without inspecting it.
	if _, err := client.Write([]byte("AMQP")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(broker, make([]byte, 4)); err != nil {
		t.Errorf("reading in the other direction: got error %v, want nil", err)
	}
}
