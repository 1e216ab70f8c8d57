package proxy

import "net"

// HalfClose ends one direction of all connections, as a peer that shuts its
// sending side does: the receiver reads the end, and the other direction stays
// open.
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
