package proxy

import "net"

// HalfClose closes one direction of all connections, like a peer that shuts down its sending side. The receiver reads
// the end of the stream, and the other direction stays open.
func (p *Proxy) HalfClose(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		to := c.broker
		if d == ToClient {
			to = c.client
		}
		if tcp, ok := to.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // it may be closed already
		}
	}
}
