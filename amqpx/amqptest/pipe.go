package amqptest

import (
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// pipe is one direction of an in-memory connection. Writes never block, because the pipe buffers everything that has
// not been read. Reads wait on a condition variable, which is durably blocking in a testing/synctest bubble, so time
// can advance while a read waits.
type pipe struct {
	mu       sync.Mutex
	more     sync.Cond
	buf      []byte
	latency  time.Duration
	under    [][]byte // written but not yet readable because of the latency, oldest first
	closed   bool
	timer    *time.Timer
	deadline time.Time
}

func newPipe(latency time.Duration) *pipe {
	p := &pipe{latency: latency}
	p.more.L = &p.mu
	return p
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	if p.latency > 0 {
		p.under = append(p.under, slices.Clone(b))
		time.AfterFunc(p.latency, p.arrive)
		return len(b), nil
	}
	p.buf = append(p.buf, b...)
	p.more.Broadcast()
	return len(b), nil
}

// arrive makes the oldest pending write readable.
func (p *pipe) arrive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = append(p.buf, p.under[0]...)
	p.under = p.under[1:]
	p.more.Broadcast()
}

// Read waits for data. After the pipe has been closed, it returns the remaining data and then io.EOF.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			p.buf = p.buf[n:]
			if len(p.buf) == 0 {
				p.buf = nil
			}
			return n, nil
		case p.closed && len(p.under) == 0:
			return 0, io.EOF
		}
		p.more.Wait()
	}
}

// end closes the pipe. Reads return the remaining data and then io.EOF.
func (p *pipe) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.more.Broadcast()
}

func (p *pipe) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	switch {
	case t.IsZero() || p.closed:
		if p.timer != nil {
			p.timer.Stop()
		}
	case p.timer == nil:
		p.timer = time.AfterFunc(time.Until(t), p.wake)
	default:
		p.timer.Reset(time.Until(t))
	}
	p.more.Broadcast()
}

func (p *pipe) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.more.Broadcast()
}

// pipeConn is one end of an in-memory connection.
type pipeConn struct {
	in, out       *pipe
	local, remote pipeAddr
}

// pipes returns both ends of a new connection.
func pipes(client, server string, latency time.Duration) (c, s *pipeConn) {
	up, down := newPipe(latency), newPipe(latency)
	return &pipeConn{down, up, pipeAddr(client), pipeAddr(server)}, &pipeConn{up, down, pipeAddr(server), pipeAddr(client)}
}

func (c *pipeConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.out.Write(b) }

// Close closes both directions, as closing a socket does.
func (c *pipeConn) Close() error {
	c.in.end()
	c.out.end()
	return nil
}

func (c *pipeConn) LocalAddr() net.Addr  { return c.local }
func (c *pipeConn) RemoteAddr() net.Addr { return c.remote }

func (c *pipeConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return nil
}

// SetWriteDeadline does nothing, because writes never block.
func (c *pipeConn) SetWriteDeadline(time.Time) error { return nil }

type pipeAddr string

func (pipeAddr) Network() string  { return "amqptest" }
func (a pipeAddr) String() string { return string(a) }
