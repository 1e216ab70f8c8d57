package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// greeting is a connection that remembers what the other end said first, and why nothing
// more was heard.
type greeting struct {
	net.Conn
	mu    sync.Mutex // amqp091 may still read when its dial has failed
	heard []byte
	err   error
}

func (g *greeting) of(c net.Conn) net.Conn {
	g.Conn = c
	return g
}

func (g *greeting) said() ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard, g.err
}

// greetingSize is enough to distinguish protocols.
const greetingSize = 8

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	err = withoutAddresses(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	if missing := greetingSize - len(g.heard); missing > 0 {
		g.heard = append(g.heard, p[:min(n, missing)]...)
	}
	return n, err
}

func (g *greeting) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	return n, withoutAddresses(err)
}

// withoutAddresses returns a network error without its addresses, so that its text is the
// same for every connection: the local port is another each time, and the broker's address
// is known.
func withoutAddresses(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return &net.OpError{Op: op.Op, Err: op.Err}
	}
	return err
}

// askTimeout bounds the question.
const askTimeout = 2 * time.Second

// askHTTP finds out whether what keeps silent is an HTTP server, as RabbitMQ's
// management is one: to it the AMQP header is the beginning of a request, and it waits
// for the rest.
func (a *attempt) askHTTP(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, min(askTimeout, a.cfg.DialTimeout))
	defer cancel()
	conn, err := a.cfg.Dial(ctx, "tcp", hostPort(a.uri))
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return nil
	}
	answer := make([]byte, len("HTTP/"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/" {
		return nil
	}
	return answer
}
