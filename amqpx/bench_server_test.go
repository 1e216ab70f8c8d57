package amqpx

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// confirmer is a broker that agrees to everything and confirms every publish at
// once. It allocates nothing while it serves, so that a benchmark counts the
// client alone.
type confirmer struct{ ln net.Listener }

func newConfirmer(tb testing.TB) *confirmer {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serveConfirms(conn)
		}
	}()
	tb.Cleanup(func() {
		_ = ln.Close()
		<-ended
	})
	return &confirmer{ln}
}

func (c *confirmer) url() string { return "amqp://guest:guest@" + c.ln.Addr().String() + "/" }

func (c *confirmer) client(tb testing.TB) *Client {
	tb.Helper()
	client, err := Open(tb.Context(), Config{URL: c.url(), Declare: DeclareNothing})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *confirmer) raw(tb testing.TB) *amqp.Channel {
	tb.Helper()
	conn, err := amqp.Dial(c.url())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		tb.Fatal(err)
	}
	return ch
}

// answers are the methods that end a request, by its class and method; what is
// left out gets none.
var answers = map[[2]uint16][]byte{
	{10, 11}: {0, 10, 0, 30, 0, 0, 0, 2, 0, 0, 0, 0},         // start-ok: tune
	{10, 40}: {0, 10, 0, 41, 0},                              // connection.open
	{10, 50}: {0, 10, 0, 51},                                 // connection.close
	{20, 10}: {0, 20, 0, 11, 0, 0, 0, 0},                     // channel.open
	{20, 40}: {0, 20, 0, 41},                                 // channel.close
	{40, 10}: {0, 40, 0, 11},                                 // exchange.declare
	{40, 30}: {0, 40, 0, 31},                                 // exchange.bind
	{50, 10}: {0, 50, 0, 11, 1, 'q', 0, 0, 0, 0, 0, 0, 0, 0}, // queue.declare
	{50, 20}: {0, 50, 0, 21},                                 // queue.bind
	{85, 10}: {0, 85, 0, 11},                                 // confirm.select
}

func serveConfirms(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in, out := bufio.NewReaderSize(conn, 1<<16), bufio.NewWriterSize(conn, 1<<16)
	frame := func(channel uint16, payload []byte) {
		var head [7]byte
		head[0] = 1
		binary.BigEndian.PutUint16(head[1:], channel)
		binary.BigEndian.PutUint32(head[3:], uint32(len(payload)))
		_, _ = out.Write(head[:]) // the client may have hung up
		_, _ = out.Write(payload)
		_ = out.WriteByte(0xCE)
	}
	if _, err := in.Discard(8); err != nil {
		return
	}
	frame(0, []byte("\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"))
	var (
		content   [1 << 17]byte
		ack       [13]byte
		publisher uint16 // the channel that publishes
		published uint64
		confirmed uint64
	)
	copy(ack[:], []byte{0, 60, 0, 80})
	for {
		if in.Buffered() == 0 {
			if published > confirmed {
				binary.BigEndian.PutUint64(ack[4:], published)
				ack[12] = 1 // multiple
				confirmed = published
				frame(publisher, ack[:])
			}
			if out.Flush() != nil {
				return
			}
		}
		head, err := in.Peek(7)
		if err != nil {
			return
		}
		kind, channel, size := head[0], binary.BigEndian.Uint16(head[1:]), int(binary.BigEndian.Uint32(head[3:]))
		if _, err := in.Discard(7); err != nil {
			return
		}
		if _, err := io.ReadFull(in, content[:size+1]); err != nil {
			return
		}
		if kind != 1 {
			continue
		}
		method := [2]uint16{binary.BigEndian.Uint16(content[:]), binary.BigEndian.Uint16(content[2:])}
		if method == [2]uint16{60, 40} { // its header and body follow
			published++
			publisher = channel
			continue
		}
		if answer, ok := answers[method]; ok {
			frame(channel, answer)
		}
	}
}
