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
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// conns are the connections on which a client declares, apart from those
// that publish and consume: the broker may answer a declaration by ending the
// connection (541), and it does not read from one that it blocks because it has
// published. One connection serves all; it is opened when something is to be
// declared and closed when it has been idle.
type conns struct {
	cfg    wire.Config
	direct bool // no dialer of the user's
	log    *zap.Logger

	over   context.Context // cuts the connections
	ctx    context.Context // ends at close
	cancel context.CancelFunc
	work   sync.WaitGroup // what begin runs
	dials  wait.Mutex     // held while the shared connection is being opened
	alone  chan struct{}  // one for each connection for one destination alone

	mu     sync.Mutex
	closed bool
	shared *connection
	open   map[*connection]struct{}
	failed error // of the last attempt to connect
	fails  int
	again  time.Time // when to try after that

	sessions uint64
	shown    atomic.Pointer[shown]
}

type connection struct {
	conn  *amqp.Connection
	node  string // where to dial, which may be a URL with its password
	url   string
	users int
	done  bool // takes no new users, and is closed when the last one has left
	idle  *time.Timer
}

const (
	// declareIdle is how long the connection stays open without a user.
	declareIdle = time.Minute
	// maxAloneConns bounds the connections for one destination each.
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

// begin runs f beside its caller, until close at the latest. It reports false
// after that.
func (p *conns) begin(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(func() { f(p.ctx) })
	}
	return !p.closed
}

// Close ends the connections and what runs on them.
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
	for _, d := range p.all() { // those that were being opened
		p.retire(d)
	}
}

func (p *conns) all() []*connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.open))
}

// loan is the use of a connection.
type loan struct {
	conn *amqp.Connection
	end  func() // gives it back
	// spoil closes the connection as soon as nobody else uses it: it does not answer.
	spoil func()
}

// borrow returns the shared connection to the broker of a session, or one that
// nobody else uses. Where the broker refuses another connection, which a limit on
// connections may do, it lends the session's own.
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
		p.log.Warn("cannot open a connection for declarations; declaring on another connection", zap.Error(err))
		return loan{conn: sess.Conn, end: func() {}, spoil: func() {}}, nil
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

// node returns the session's own node, to which its declarations go: in a cluster
// another node may route by a new binding later.
func (p *conns) node(sess *Session) string {
	if addr, ok := sess.Conn.RemoteAddr().(*net.TCPAddr); ok && p.direct {
		return addr.String()
	}
	return sess.URL
}

// join adds a user to the shared connection; nil when there is none to the node. A
// session that publishes nothing does not mind which it is.
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

// connect opens a connection, which has one user.
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
		p.failed, p.again = fmt.Errorf("connection to declare on: %w", err), time.Now().Add(wait.Backoff(p.cfg.ReconnectMin, p.cfg.ReconnectMax, p.fails))
		p.show()
		return nil, p.failed
	}
	p.failed, p.fails = nil, 0
	p.sessions++
	p.show()
	d := &connection{conn: conn, node: node, url: sess.URL, users: 1}
	d.idle = time.AfterFunc(declareIdle, func() {
		p.change(d, func() {
			if d.users == 0 { // nobody has just come
				p.takeOut(d)
			}
		})
	})
	d.idle.Stop()
	p.open[d] = struct{}{}
	p.log.Debug("connected", zap.String("broker", wire.Broker(conn)))
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
	return loan{conn: d.conn, end: leave, spoil: func() { p.retire(d); leave() }}
}

// retire takes a connection out of use.
func (p *conns) retire(d *connection) { p.change(d, func() { p.takeOut(d) }) }

func (p *conns) takeOut(d *connection) {
	d.done = true
	d.idle.Stop()
	if p.shared == d {
		p.shared = nil
		p.show()
	}
}

// change modifies a connection with the lock held, and closes it if it has no
// users and will get none.
func (p *conns) change(d *connection, f func()) {
	p.mu.Lock()
	f()
	_, open := p.open[d]
	over := open && d.done && d.users == 0
	if over {
		delete(p.open, d)
	}
	p.mu.Unlock()
	if over && !p.begin(func(context.Context) { wire.CloseConn(d.conn) }) { // nobody need wait for the broker
		wire.CloseConn(d.conn)
	}
}

// Status is the state of the connection for declarations. Its State is empty when there is
// none and none is wanted.
type Status struct {
	State    wire.State
	Since    time.Time
	Broker   string // product and version
	Address  string
	Sessions uint64 // connections made so far
	Err      error  // of StateDisconnected
}

// shown is a Status with the connection that it is about.
type shown struct {
	Status

	conn *amqp.Connection
}

// Status returns the state of the shared connection. It takes no lock.
func (c *Declarer) Status() Status {
	s := c.conns.shown.Load()
	if s == nil {
		return Status{}
	}
	if s.State == wire.StateConnected && s.conn.IsClosed() { // nobody has looked since
		return Status{Sessions: s.Sessions}
	}
	return s.Status
}

// show keeps the state for Status; the caller holds p.mu.
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
