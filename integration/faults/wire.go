package faults

import (
	"bytes"
	"io"
	"net"
	"sync"
)

// wire is a TCP proxy in front of a database. It can cut a connection instead of forwarding a commit or its answer.
type wire struct {
	target string
	ln     net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	cut    Kind // LoseCommit, LoseAnswer or empty
	cuts   int
	closed bool

	done sync.WaitGroup
}

func newWire(target string) (*wire, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{target: target, ln: ln, conns: map[net.Conn]struct{}{}}
	w.done.Go(w.accept)
	return w, nil
}

func (w *wire) addr() string { return w.ln.Addr().String() }

func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	for c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	_ = w.ln.Close()
	w.done.Wait()
}

// cutAt sets the kind of cut from now on. An empty kind disables cuts.
func (w *wire) cutAt(k Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = k
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts
}

func (w *wire) accept() {
	for {
		client, err := w.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			_, _ = client.Close(), server.Close()
			return
		}
		w.conns[client], w.conns[server] = struct{}{}, struct{}{}
		w.mu.Unlock()
		p := &wirePair{w: w, client: client, server: server}
		w.done.Go(func() { p.forward(client, server, p.request) })
		w.done.Go(func() { p.forward(server, client, p.answer) })
	}
}

// wirePair is one connection through the wire.
type wirePair struct {
	w              *wire
	client, server net.Conn

	mu        sync.Mutex
	committed bool // the server has received a commit, and its answer will be lost
}

func (p *wirePair) forward(from io.Reader, to io.Writer, pass func([]byte) bool) {
	defer func() {
		_, _ = p.client.Close(), p.server.Close()
		p.w.mu.Lock()
		delete(p.w.conns, p.client)
		delete(p.w.conns, p.server)
		p.w.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !pass(buf[:n]) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// request reports whether to forward data from the client. Drivers send a commit as a separate statement, in one piece.
func (p *wirePair) request(data []byte) bool {
	if !bytes.Contains(bytes.ToLower(data), []byte("commit")) {
		return true
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	switch p.w.cut {
	case LoseCommit:
		p.w.cuts++
		return false
	case LoseAnswer:
		p.mu.Lock()
		p.committed = true
		p.mu.Unlock()
	}
	return true
}

// answer reports whether to forward data from the server.
func (p *wirePair) answer([]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.committed {
		p.w.mu.Lock()
		p.w.cuts++
		p.w.mu.Unlock()
		return false
	}
	return true
}
