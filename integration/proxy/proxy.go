// Package proxy is a TCP proxy between a client and a broker. Tests use it to simulate network faults. It can cut,
// stall, refuse and slow down connections, and cut them at a chosen AMQP frame, for example between a publish and its
// confirm.
package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"time"
)

// Direction is the direction of data through the proxy.
type Direction int

// Directions.
const (
	ToBroker Direction = iota
	ToClient
)

// Frame is an AMQP 0-9-1 frame that passes through the proxy.
type Frame struct {
	Direction Direction
	Type      byte // 1 method, 2 header, 3 body, 8 heartbeat
	Channel   uint16
	Class     uint16 // set for a method frame only
	Method    uint16 // set for a method frame only
}

// Methods for CutAt, as class and method.
var (
	BasicPublish = [2]uint16{60, 40}
	BasicAck     = [2]uint16{60, 80}
)

// Is reports whether the frame is the method m, sent in direction d.
func (f Frame) Is(d Direction, m [2]uint16) bool {
	return f.Type == 1 && f.Direction == d && f.Class == m[0] && f.Method == m[1]
}

// Proxy forwards connections to a target.
type Proxy struct {
	target string
	ln     net.Listener

	mu      sync.Mutex
	changed sync.Cond // signals changes of stalled or closed
	conns   map[*pair]struct{}
	refuse  bool
	stalled [2]bool
	slow    time.Duration
	closed  bool
	cutAt   func(Frame) bool
	cuts    int

	done sync.WaitGroup
}

type pair struct{ client, broker net.Conn }

func (p *pair) close() {
	// Reset the connection instead of closing it gracefully, to simulate a cut.
	if c, ok := p.client.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = p.client.Close()
	_ = p.broker.Close()
}

// New starts a proxy on a free port of 127.0.0.1 in front of target.
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, ln: ln, conns: map[*pair]struct{}{}}
	p.changed.L = &p.mu
	p.done.Go(p.accept)
	return p, nil
}

// ForURL starts a proxy in front of the broker at a URL. It also returns the URL of the proxy.
func ForURL(rawURL string) (*Proxy, string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, "", errors.New("the broker's URL cannot be parsed")
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "5672")
	}
	p, err := New(host)
	if err != nil {
		return nil, "", err
	}
	u.Host = p.Addr()
	return p, u.String(), nil
}

// Addr returns the proxy's address.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close stops the proxy and cuts its connections.
func (p *Proxy) Close() {
	p.update(func() { p.closed = true })
	_ = p.ln.Close()
	p.Cut()
	p.done.Wait()
}

// Cut resets all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	p.cuts++
}

// Refuse controls whether the proxy closes new connections immediately.
func (p *Proxy) Refuse(on bool) { p.update(func() { p.refuse = on }) }

// Stall stops or resumes forwarding in one direction. The connections stay open.
func (p *Proxy) Stall(d Direction, on bool) { p.update(func() { p.stalled[d] = on }) }

// Slow adds a pause before every piece of data that the proxy forwards.
func (p *Proxy) Slow(pause time.Duration) { p.update(func() { p.slow = pause }) }

// CutAt makes the proxy cut a connection instead of forwarding a frame for which f returns true. A nil f disables this.
// The function f is called from several goroutines.
func (p *Proxy) CutAt(f func(Frame) bool) { p.update(func() { p.cutAt = f }) }

// Cuts returns how many connections were cut, by Cut or CutAt.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *Proxy) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			_ = c.Close()
			continue
		}
		b, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = c.Close()
			continue
		}
		pr := &pair{c, b}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			pr.close()
			return
		}
		p.conns[pr] = struct{}{}
		p.mu.Unlock()
		p.done.Go(func() { p.forward(pr, c, b, ToBroker) })
		p.done.Go(func() { p.forward(pr, b, c, ToClient) })
	}
}

func (p *Proxy) forward(pr *pair, from io.Reader, to io.Writer, d Direction) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, pr)
		p.mu.Unlock()
		pr.close()
	}()
	r := &frames{direction: d, skip: map[Direction]int{ToBroker: len("AMQP\x00\x00\x09\x01")}[d]}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			send, cut := r.feed(buf[:n], p.wants)
			if !p.pass(d) {
				return
			}
			if _, werr := to.Write(send); werr != nil {
				return
			}
			if cut {
				p.update(func() { p.cuts++ })
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wants reports whether to cut the connection at a frame.
func (p *Proxy) wants(f Frame) bool {
	p.mu.Lock()
	cutAt := p.cutAt
	p.mu.Unlock()
	return cutAt != nil && cutAt(f)
}

// pass waits while the direction is stalled, and reports whether to continue.
func (p *Proxy) pass(d Direction) bool {
	p.mu.Lock()
	for p.stalled[d] && !p.closed {
		p.changed.Wait()
	}
	slow, closed := p.slow, p.closed
	p.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	return !closed
}

// frames finds the frames in a stream without storing their content.
type frames struct {
	direction Direction
	skip      int    // number of bytes that belong to a frame that was already inspected
	head      []byte // beginning of a frame that is still too short to inspect
}

// headLen is the number of bytes that identify a frame's method: type, channel, size, class, method.
const headLen = 7 + 4

// feed inspects data and returns the part to forward, which is all of it unless the connection should be cut.
func (r *frames) feed(data []byte, cut func(Frame) bool) (send []byte, end bool) {
	for i := 0; i < len(data); {
		if r.skip > 0 {
			n := min(r.skip, len(data)-i)
			r.skip -= n
			i += n
			continue
		}
		r.head = append(r.head, data[i])
		i++
		if len(r.head) < 7 {
			continue
		}
		size := int(binary.BigEndian.Uint32(r.head[3:7]))
		if r.head[0] == 1 && size >= 4 && len(r.head) < headLen {
			continue
		}
		f := Frame{Direction: r.direction, Type: r.head[0], Channel: binary.BigEndian.Uint16(r.head[1:3])}
		if len(r.head) == headLen {
			f.Class, f.Method = binary.BigEndian.Uint16(r.head[7:9]), binary.BigEndian.Uint16(r.head[9:11])
		}
		if cut(f) {
			return data[:max(i-len(r.head), 0)], true
		}
		r.skip = 7 + size + 1 - len(r.head)
		r.head = r.head[:0]
	}
	return data, false
}
