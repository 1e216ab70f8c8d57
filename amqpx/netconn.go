package amqpx

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// coalescingConn gathers writes: Write copies into a buffer and returns, a
// goroutine sends what has gathered. amqp091 flushes every frame of every
// publish on its own; gathered, a hundred publishes cost one system call. And
// because Write never waits for the socket, no publish can hang on a broker that
// has stopped reading (memory or disk alarm): the window of unconfirmed messages
// bounds the buffer, and a caller's deadline holds.
type coalescingConn struct {
	net.Conn

	mu      sync.Mutex
	more    sync.Cond // signalled when buf gets its first byte, or at the end
	buf     []byte
	spare   []byte
	err     error
	closed  bool
	flushed chan struct{} // closed when the flusher has ended
	uncut   func() bool
}

// keepBuffer is the size up to which a written buffer is kept for reuse.
const keepBuffer = 1 << 20

// newCoalescingConn writes to c, which the end of over closes.
func newCoalescingConn(over context.Context, c net.Conn) *coalescingConn {
	cc := &coalescingConn{Conn: c, flushed: make(chan struct{})}
	cc.uncut = context.AfterFunc(over, func() { _ = c.Close() })
	cc.more.L = &cc.mu
	go cc.flush()
	return cc
}

func (c *coalescingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.err != nil {
		return 0, c.err
	}
	if len(c.buf) == 0 {
		c.more.Signal()
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *coalescingConn) flush() {
	defer close(c.flushed)
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.buf) == 0 && !c.closed {
			c.more.Wait()
		}
		if len(c.buf) == 0 || c.err != nil {
			return
		}
		out := c.buf
		c.buf, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		_, err := c.Conn.Write(out)
		c.mu.Lock()
		if cap(out) <= keepBuffer {
			c.spare = out[:0]
		}
		if err != nil {
			// The reader sees the closed socket and ends the connection.
			c.err = err
			_ = c.Conn.Close()
			return
		}
	}
}

// closeFlush bounds how long Close waits for the socket to take what is left.
const closeFlush = 200 * time.Millisecond

// Close sends what is left in the buffer, if the socket takes it quickly (a
// close-ok, say), and closes.
func (c *coalescingConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.more.Signal()
	c.mu.Unlock()
	c.uncut()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeFlush))
	<-c.flushed
	err := c.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
