package amqpx

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// greeting keeps what the other end said first, and why nothing more was heard.
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

// greetingSize is enough to tell protocols apart.
const greetingSize = 8

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
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

// askTimeout bounds the question.
const askTimeout = 2 * time.Second

// askHTTP finds out whether what keeps silent is an HTTP server, as RabbitMQ's
// management does: the AMQP header is no whole request, so that it waits for
// more of it.
func askHTTP(ctx context.Context, cfg Config, address string) []byte {
	ctx, cancel := context.WithTimeout(ctx, min(askTimeout, cfg.DialTimeout))
	defer cancel()
	conn, err := cfg.Dial(ctx, "tcp", address)
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
