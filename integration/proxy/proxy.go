// Package proxy is a TCP proxy between a client and a broker that tests break
// on purpose: it cuts, stalls, refuses and slows connections, and can cut at a
// chosen AMQP frame, such as between a publish and its confirm.
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

// Direction of data through the proxy.
type Direction int

// Directions.
const (
	ToBroker Direction = iota
	ToClient
)

// Frame is one AMQP 0-9-1 frame on its way.
type Frame struct {
	Direction Direction
	Type      byte // 1 method, 2 header, 3 body, 8 heartbeat
	Channel   uint16
	Class     uint16 // of a method
	Method    uint16 // of a method
}

// Methods that tests cut at, as class and method.
var (
	BasicPublish = [2]uint16{60, 40}
	BasicAck     = [2]uint16{60, 80}
)

// Is reports whether the frame is the method m, sent in direction d.
func (f Frame) Is(d Direction, m [2]uint16) bool {
	return f.Type == 1 && f.Direction == d && f.Class == m[0] && f.Method == m[1]
}

// Proxy forwards connections to one target.
type Proxy struct {
	target string
	ln     net.Listener

	mu      sync.Mutex
	changed sync.Cond // stalled or closed changed
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
	// Reset instead of a polite end: that is what a cut looks like.
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

// ForURL starts a proxy in front of a broker's URL and returns the URL through
// the proxy as well.
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

// Addr is the proxy's own address.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.update(func() { p.closed = true })
	_ = p.ln.Close()
	p.Cut()
	p.done.Wait()
}

// Cut ends all connections with a reset.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	p.cuts++
}

// Refuse makes the proxy close new connections at once, or not.
func (p *Proxy) Refuse(on bool) { p.update(func() { p.refuse = on }) }

// Stall stops forwarding in a direction, or goes on with it. The connections
// stay open.
func (p *Proxy) Stall(d Direction, on bool) { p.update(func() { p.stalled[d] = on }) }

// Slow adds a pause before every piece of data that is forwarded.
func (p *Proxy) Slow(pause time.Duration) { p.update(func() { p.slow = pause }) }

// CutAt cuts a connection in place of forwarding a frame for which f is true;
// nil ends it. f is called from many goroutines.
func (p *Proxy) CutAt(f func(Frame) bool) { p.update(func() { p.cutAt = f }) }

// Cuts is how often connections were cut, by Cut or CutAt.
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

// wants reports whether the connection is to be cut at a frame.
func (p *Proxy) wants(f Frame) bool {
	p.mu.Lock()
	cutAt := p.cutAt
	p.mu.Unlock()
	return cutAt != nil && cutAt(f)
}

// pass waits while the direction is stalled, and reports whether to go on.
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

// frames finds the frames in a stream without keeping their content.
type frames struct {
	direction Direction
	skip      int    // bytes that belong to what has been looked at
	head      []byte // the beginning of a frame, until it can be looked at
}

// headLen is enough of a frame to know its method: type, channel, size, class,
// method.
const headLen = 7 + 4

// feed looks at data and returns what to forward of it, all of it unless the
// connection is to be cut.
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
