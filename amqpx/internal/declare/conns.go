package declare

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// conns manages the connections on which a client declares. They are separate from the connections for publishing and
// consuming, because the broker may answer a declaration by closing the connection (541), and because it does not read
// from a connection that it blocks for having published. All declarations share one connection, which is opened when it
// is first needed and closed when it has been idle.
type conns struct {
	cfg    wire.Config
	direct bool // the default dialer is used, so a node can be dialled by its IP address
	log    *zap.Logger

	over   context.Context // when it ends, the connections are closed abruptly
	ctx    context.Context // ends at close
	cancel context.CancelFunc
	work   sync.WaitGroup // the goroutines that begin has started
	dials  wait.Mutex     // held while the shared connection is being opened
	alone  chan struct{}  // limits the connections that are not shared

	mu     sync.Mutex
	closed bool
	shared *connection
	open   map[*connection]struct{}
	failed error // the error of the last attempt to connect
	fails  int
	again  time.Time // when to try to connect again

	sessions uint64
	shown    atomic.Pointer[shown]
}

type connection struct {
	conn   *amqp.Connection
	ending *wire.Ending
	node   string // the address to dial; may be a URL with its password
	url    string
	users  int
	done   bool // no new users are accepted, and the connection is closed when the last user has left
	idle   *time.Timer
}

const (
	// declareIdle is how long the connection stays open without users.
	declareIdle = time.Minute
	// maxAloneConns limits the connections that are not shared, each of which serves one destination.
	maxAloneConns = 4
)

func newConns(over context.Context, cfg wire.Config, direct bool) *conns {
	p := &conns{
		over: over, cfg: cfg, direct: direct, log: cfg.Log.Named("declare"), dials: wait.NewMutex(),
		alone: make(chan struct{}, maxAloneConns), open: map[*connection]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// begin runs f in a goroutine, with a context that ends at close. It reports false, and does not run f, if conns is
// already closed.
func (p *conns) begin(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(func() { f(p.ctx) })
	}
	return !p.closed
}

// Close closes the connections, and waits for the goroutines that use them.
func (c *Declarer) Close() {
	p := c.conns
	p.mu.Lock()
	p.closed = true
	p.show()
	p.mu.Unlock()
	p.cancel()
	for _, d := range p.all() {
		p.retire(d)
		wire.CloseConn(d.conn)
	}
	p.work.Wait()
	for _, d := range p.all() { // connections that were still being opened
		p.retire(d)
	}
}

func (p *conns) all() []*connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.open))
}

// loan is a connection that a caller has borrowed and must return with end or spoil.
type loan struct {
	conn   *amqp.Connection
	ending *wire.Ending
	end    func() // returns the connection
	// spoil returns a connection that does not answer, so that it is closed once it has no other users.
	spoil func()
}

// borrow returns the shared connection to a session's broker, or, if alone is true, a connection that is not shared. If
// the broker permanently refuses the shared connection, borrow returns the session's own connection.
func (p *conns) borrow(ctx context.Context, sess *Session, alone bool) (loan, error) {
	if alone {
		return p.borrowAlone(ctx, sess)
	}
	if err := p.dials.Lock(ctx); err != nil {
		return loan{}, err
	}
	defer p.dials.Unlock()
	if d := p.join(sess); d != nil {
		return p.lend(d), nil
	}
	d, err := p.connect(ctx, sess)
	if err != nil && p.cfg.Permanent(err) && !sess.Conn.IsClosed() {
		p.log.Warn("could not open a connection for declarations; using an existing connection", zap.Error(err))
		return loan{conn: sess.Conn, ending: sess.Ending, end: func() {}, spoil: func() {}}, nil
	}
	if err != nil {
		return loan{}, err
	}
	p.mu.Lock()
	p.shared = d
	p.show()
	p.mu.Unlock()
	return p.lend(d), nil
}

func (p *conns) borrowAlone(ctx context.Context, sess *Session) (loan, error) {
	select {
	case p.alone <- struct{}{}:
	case <-ctx.Done():
		return loan{}, ctx.Err()
	}
	d, err := p.connect(ctx, sess)
	if err != nil {
		<-p.alone
		return loan{}, err
	}
	p.retire(d)
	l := p.lend(d)
	end := l.end
	l.end = func() { end(); <-p.alone }
	return l, nil
}

// node returns where to reach the session's own node: its IP address or, with a custom dialer, the session's URL.
// Declarations are sent to this node, because another node of a cluster might route by a new binding only later.
func (p *conns) node(sess *Session) string {
	if addr, ok := sess.Conn.RemoteAddr().(*net.TCPAddr); ok && p.direct {
		return addr.String()
	}
	return sess.URL
}

// join adds a user to the shared connection. If there is none to the session's node, join returns nil, and closes a
// shared connection to another node once it has no users. A session that does not publish accepts any node.
func (p *conns) join(sess *Session) *connection {
	p.mu.Lock()
	d := p.shared
	ok := d != nil && !d.done && (!sess.Publishes || d.node == p.node(sess)) && !d.conn.IsClosed()
	if ok {
		d.users++
		d.idle.Stop()
	}
	p.mu.Unlock()
	if ok {
		return d
	}
	if d != nil {
		p.retire(d)
	}
	return nil
}

// connect opens a connection and counts the caller as its first user. During the back-off after a failure, it returns
// the last error without trying.
func (p *conns) connect(ctx context.Context, sess *Session) (*connection, error) {
	p.mu.Lock()
	failed, pause := p.failed, time.Until(p.again)
	p.mu.Unlock()
	if failed != nil && pause > 0 {
		return nil, failed
	}
	cfg, node := p.cfg, p.node(sess)
	if node != sess.URL {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return p.cfg.Dial(ctx, network, node)
		}
	}
	conn, err := wire.Open(ctx, p.over, cfg, sess.URL, "declare")
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.fails++
		p.failed, p.again = fmt.Errorf("connecting for declarations: %w", err), time.Now().Add(wait.Backoff(p.cfg.ReconnectMin, p.cfg.ReconnectMax, p.fails))
		p.show()
		return nil, p.failed
	}
	p.failed, p.fails = nil, 0
	p.sessions++
	p.show()
	d := &connection{conn: conn, ending: wire.Watch(conn), node: node, url: sess.URL, users: 1}
	d.idle = time.AfterFunc(declareIdle, func() {
		p.change(d, func() {
			if d.users == 0 { // no user has joined in the meantime
				p.takeOut(d)
			}
		})
	})
	d.idle.Stop()
	p.open[d] = struct{}{}
	p.log.Debug("opened the connection for declarations", zap.String("broker", wire.Broker(conn)))
	return d, nil
}

func (p *conns) lend(d *connection) loan {
	leave := sync.OnceFunc(func() {
		p.change(d, func() {
			d.users--
			if d.users == 0 && !d.done {
				d.idle.Reset(declareIdle)
			}
		})
	})
	return loan{conn: d.conn, ending: d.ending, end: leave, spoil: func() { p.retire(d); leave() }}
}

// retire stops a connection from being used again.
func (p *conns) retire(d *connection) { p.change(d, func() { p.takeOut(d) }) }

func (p *conns) takeOut(d *connection) {
	d.done = true
	d.idle.Stop()
	if p.shared == d {
		p.shared = nil
		p.show()
	}
}

// change modifies a connection with the lock held, and closes the connection if it has no users and accepts none.
func (p *conns) change(d *connection, f func()) {
	p.mu.Lock()
	f()
	_, open := p.open[d]
	over := open && d.done && d.users == 0
	if over {
		delete(p.open, d)
	}
	p.mu.Unlock()
	if over && !p.begin(func(context.Context) { wire.CloseConn(d.conn) }) { // do not wait for the broker
		wire.CloseConn(d.conn)
	}
}

// Status is the state of the connection for declarations. State is empty if there is no connection and none is needed.
type Status struct {
	State    wire.State
	Since    time.Time
	Broker   string // product and version
	Address  string
	Sessions uint64 // connections made so far
	Err      error  // set in StateDisconnected
}

// shown is a Status with the connection that it describes.
type shown struct {
	Status

	conn *amqp.Connection
}

// Status returns the state of the shared connection. It does not lock.
func (c *Declarer) Status() Status {
	s := c.conns.shown.Load()
	if s == nil {
		return Status{}
	}
	if s.State == wire.StateConnected && s.conn.IsClosed() { // its end has not been noticed yet
		return Status{Sessions: s.Sessions}
	}
	return s.Status
}

// show stores the state for Status. The caller holds p.mu.
func (p *conns) show() {
	var s shown
	switch {
	case p.closed:
		s.State = wire.StateClosed
	case p.shared != nil:
		s.State, s.conn = wire.StateConnected, p.shared.conn
		s.Broker, s.Address = wire.Broker(p.shared.conn), wire.Address(p.shared.url)
	case p.failed != nil:
		s.State, s.Err = wire.StateDisconnected, p.failed
	}
	s.Sessions = p.sessions
	before := p.shown.Load()
	switch {
	case s.State == "":
	case before != nil && before.State == s.State && before.conn == s.conn:
		s.Since = before.Since
	default:
		s.Since = time.Now()
	}
	p.shown.Store(&s)
}
