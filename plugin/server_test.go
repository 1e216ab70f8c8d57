package plugin_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// server speaks just enough AMQP 0-9-1 for a probe, over a pipe, and answers the
// declaration of an exchange as the test says.
type server struct {
	properties map[string]string
	// declare answers exchange.declare; nil never answers.
	declare func(w *writer)

	mu       sync.Mutex
	declared map[string]string // exchange to type
	deleted  []string
	goodbye  bool // the client closed the connection in order
}

type writer struct{ io.Writer }

func short(n uint16) []byte    { return binary.BigEndian.AppendUint16(nil, n) }
func long(n uint32) []byte     { return binary.BigEndian.AppendUint32(nil, n) }
func shortstr(s string) []byte { return append([]byte{byte(len(s))}, s...) }
func longstr(s string) []byte  { return append(long(uint32(len(s))), s...) }

// method writes a method frame.
func (w *writer) method(channel, class, method uint16, args ...[]byte) {
	payload := bytes.Join(append([][]byte{short(class), short(method)}, args...), nil)
	frame := append([]byte{1}, short(channel)...)
	frame = append(frame, long(uint32(len(payload)))...)
	frame = append(append(frame, payload...), 0xCE)
	_, _ = w.Write(frame) // the client may have hung up
}

// closeConnection and closeChannel are the two ways to refuse a method.
func (w *writer) closeConnection(code uint16, text string) {
	w.method(0, 10, 50, short(code), shortstr(text), short(40), short(10))
}

func (w *writer) closeChannel(code uint16, text string) {
	w.method(1, 20, 40, short(code), shortstr(text), short(40), short(10))
}

func (w *writer) declareOK() { w.method(1, 40, 11) }

// dial connects a client to the server, which serves until the client hangs up.
func (s *server) dial(t *testing.T) func(context.Context) (*amqp.Connection, error) {
	return func(context.Context) (*amqp.Connection, error) {
		client, mine := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.serve(mine)
		}()
		t.Cleanup(func() {
			_ = client.Close()
			<-done
		})
		return amqp.Open(client, amqp.Config{Vhost: "/", SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "u", Password: "p"}}})
	}
}

func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	// A pipe has no buffer: writing beside reading keeps both sides going.
	out := make(chan []byte, 100)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for b := range out {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}()
	defer func() {
		close(out)
		<-written
	}()
	w := &writer{channelWriter(out)}

	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
		return
	}
	var table []byte
	for k, v := range s.properties {
		table = append(append(append(table, shortstr(k)...), 'S'), longstr(v)...)
	}
	w.method(0, 10, 10, []byte{0, 9}, longstr(string(table)), longstr("PLAIN"), longstr("en_US"))
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return
		}
		if head[0] == 1 && !s.handle(w, payload) {
			return
		}
	}
}

// handle answers one method, and tells whether to go on.
func (s *server) handle(w *writer, payload []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	class, method := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	// The name is the first argument of the exchange methods, past a reserved short.
	name := func() string { return string(payload[7 : 7+payload[6]]) }
	switch [2]uint16{class, method} {
	case [2]uint16{10, 11}: // start-ok
		w.method(0, 10, 30, short(0), long(131072), short(0))
	case [2]uint16{10, 40}: // open
		w.method(0, 10, 41, shortstr(""))
	case [2]uint16{20, 10}: // channel.open
		w.method(1, 20, 11, longstr(""))
	case [2]uint16{40, 10}: // exchange.declare
		n := name()
		kind := payload[7+len(n):]
		if s.declared == nil {
			s.declared = map[string]string{}
		}
		s.declared[n] = string(kind[1 : 1+kind[0]])
		if s.declare != nil {
			s.declare(w)
		}
	case [2]uint16{40, 20}: // exchange.delete
		s.deleted = append(s.deleted, name())
		w.method(1, 40, 21)
	case [2]uint16{10, 50}: // close
		s.goodbye = true
		w.method(0, 10, 51)
	case [2]uint16{10, 51}: // close-ok
		return false
	}
	return true
}

type channelWriter chan<- []byte

func (c channelWriter) Write(p []byte) (int, error) {
	c <- bytes.Clone(p)
	return len(p), nil
}
