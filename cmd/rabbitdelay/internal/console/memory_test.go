package console

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
)

// memoryListener accepts in-memory pipes as connections, so that servers and clients work in the virtual time of
// testing/synctest. A pipe has no buffer, so a write waits for its reader.
type memoryListener struct {
	dialed chan net.Conn
	closed chan struct{}
	close  func()
}

// memoryConn is a pipe with the addresses of a TCP connection.
type memoryConn struct{ net.Conn }

var errMemoryRefused = errors.New("connection refused")

func newMemoryListener() *memoryListener {
	l := &memoryListener{dialed: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.close()
	return nil
}

func (*memoryListener) Addr() net.Addr { return memoryAddr() }

// dial returns the client's end of a new connection. Use it as the DialContext of an http.Transport.
func (l *memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.dialed <- memoryConn{server}:
		return memoryConn{client}, nil
	case <-l.closed:
		return nil, errMemoryRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func memoryAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (memoryConn) LocalAddr() net.Addr  { return memoryAddr() }
func (memoryConn) RemoteAddr() net.Addr { return memoryAddr() }

// serveInMemory starts a server that only the returned client can reach. The client does not follow redirects. The
// caller must close the server.
func serveInMemory(h http.Handler, change ...func(*http.Server)) (*httptest.Server, *http.Client) {
	l := newMemoryListener()
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	for _, c := range change {
		c(server.Config)
	}
	server.Start()
	return server, &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: l.dial},
	}
}
