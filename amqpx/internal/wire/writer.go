package wire

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// writer is a connection that buffers writes: Write copies into a buffer and returns, and a goroutine sends the
// buffer's content. amqp091 flushes every frame of every publish separately. With the buffer, a hundred publishes may
// cost one system call. Because Write never waits for the socket, no publish can hang on a broker that has stopped
// reading because of a memory or disk alarm. The window of unconfirmed messages limits the size of the buffer, and a
// caller's deadline still applies.
type writer struct {
	net.Conn

	mu      sync.Mutex
	more    sync.Cond // signalled when buf gets its first byte, and when the writer is closed
	buf     []byte
	spare   []byte
	err     error
	closed  bool
	flushed chan struct{} // closed when the flush goroutine has ended
	uncut   func() bool   // keeps the end of the context from closing the connection
}

// keepBuffer is the size up to which a written buffer is kept for reuse.
const keepBuffer = 1 << 20

// newWriter returns a writer to c. The parameter over is a context whose end closes c.
func newWriter(over context.Context, c net.Conn) *writer {
	w := &writer{Conn: c, flushed: make(chan struct{})}
	w.uncut = context.AfterFunc(over, func() { _ = c.Close() })
	w.more.L = &w.mu
	go w.flush()
	return w
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, net.ErrClosed
	}
	if w.err != nil {
		return 0, w.err
	}
	if len(w.buf) == 0 {
		w.more.Signal()
	}
	w.buf = append(w.buf, p...)
	return len(p), nil
}

func (w *writer) flush() {
	defer close(w.flushed)
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.buf) == 0 && !w.closed {
			w.more.Wait()
		}
		if len(w.buf) == 0 || w.err != nil {
			return
		}
		out := w.buf
		w.buf, w.spare = w.spare[:0], nil
		w.mu.Unlock()
		_, err := w.Conn.Write(out)
		w.mu.Lock()
		if cap(out) <= keepBuffer {
			w.spare = out[:0]
		}
		if err != nil {
			// The reader notices the closed socket and ends the connection.
			w.err = err
			_ = w.Conn.Close()
			return
		}
	}
}

// closeFlush limits how long Close waits for the remaining data to be written.
const closeFlush = 200 * time.Millisecond

// Close sends the rest of the buffer, such as a close-ok, if that is possible within closeFlush, and closes the
// connection.
func (w *writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.more.Signal()
	w.mu.Unlock()
	w.uncut()
	_ = w.Conn.SetWriteDeadline(time.Now().Add(closeFlush))
	<-w.flushed
	err := w.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
