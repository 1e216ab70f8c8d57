package amqpx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// declareConns are the connections on which a client declares, apart from those
// that publish and consume: the broker may answer a declaration by ending the
// connection (541), and it does not read from one that it blocks because it has
// published. One connection serves all; it is opened when something is to be
// declared and closed when it has been idle.
type declareConns struct {
	cfg    Config
	direct bool // no dialer of the user's
	log    *zap.Logger

	over   context.Context // cuts the connections
	ctx    context.Context // ends at close
	cancel context.CancelFunc
	work   sync.WaitGroup // what begin runs
	dials  ctxMutex       // held while the shared connection is being opened
	alone  chan struct{}  // one for each connection for one destination alone

	mu     sync.Mutex
	closed bool
	shared *declareConn
	open   map[*declareConn]struct{}
	failed error // of the last attempt to connect
	fails  int
	again  time.Time // when to try after that

	sessions uint64
	state    atomic.Pointer[declareState] // for stats
}

// declareConn is one connection with its users.
type declareConn struct {
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

func newDeclareConns(over context.Context, cfg Config, direct bool) *declareConns {
	p := &declareConns{over: over, cfg: cfg, direct: direct, log: cfg.Logger.Named("declare"), dials: newCtxMutex(), alone: make(chan struct{}, maxAloneConns), open: map[*declareConn]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// begin runs f beside its caller, until close at the latest. It reports false
// after that.
func (p *declareConns) begin(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Go(func() { f(p.ctx) })
	}
	return !p.closed
}

// close ends the connections and what runs on them.
func (p *declareConns) close() {
	p.mu.Lock()
	p.closed = true
	p.observe()
	p.mu.Unlock()
	p.cancel()
	for _, d := range p.all() {
		p.retire(d)
		closeConn(d.conn)
	}
	p.work.Wait()
	for _, d := range p.all() { // those that were being opened
		p.retire(d)
	}
}

func (p *declareConns) all() []*declareConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*declareConn
	for d := range p.open {
		all = append(all, d)
	}
	return all
}

// loan is the use of a connection.
type loan struct {
	conn *amqp.Connection
	end  func() // gives it back
	// spoil closes the connection as soon as nobody else uses it: it does not answer.
	spoil func()
}

// borrow gives the shared connection to the broker of a session, or one that
// nobody else uses. Where the broker refuses another connection, which a limit on
// connections may do, it lends the session's own.
func (p *declareConns) borrow(ctx context.Context, sess *session, alone bool) (loan, error) {
	if alone {
		return p.borrowAlone(ctx, sess)
	}
	if err := p.dials.lock(ctx); err != nil {
		return loan{}, err
	}
	defer p.dials.unlock()
	if d := p.join(sess); d != nil {
		return p.lend(d), nil
	}
	d, err := p.connect(ctx, sess)
	if err != nil && permanent(err) && !sess.conn.IsClosed() {
		p.log.Warn("cannot open a connection for declarations; declaring on another connection", zap.Error(err))
		return loan{conn: sess.conn, end: func() {}, spoil: func() {}}, nil
	}
	if err != nil {
		return loan{}, err
	}
	p.mu.Lock()
	p.shared = d
	p.observe()
	p.mu.Unlock()
	return p.lend(d), nil
}

func (p *declareConns) borrowAlone(ctx context.Context, sess *session) (loan, error) {
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

// node is the session's own node, to which its declarations go: in a cluster
// another node may route by a new binding later.
func (p *declareConns) node(sess *session) string {
	if addr, ok := sess.conn.RemoteAddr().(*net.TCPAddr); ok && p.direct {
		return addr.String()
	}
	return sess.url
}

func (p *declareConns) dial(ctx context.Context, sess *session) (*amqp.Connection, error) {
	cfg := p.cfg
	if node := p.node(sess); node != sess.url {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return p.cfg.Dial(ctx, network, node)
		}
	}
	return dial(ctx, p.over, cfg, sess.url, cfg.ConnectionName+" declare")
}

// join adds a user to the shared connection; nil when there is none to the node. A
// session that publishes nothing does not mind which it is.
func (p *declareConns) join(sess *session) *declareConn {
	p.mu.Lock()
	d := p.shared
	ok := d != nil && !d.done && (sess.pub == nil || d.node == p.node(sess)) && !d.conn.IsClosed()
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
func (p *declareConns) connect(ctx context.Context, sess *session) (*declareConn, error) {
	p.mu.Lock()
	failed, wait := p.failed, time.Until(p.again)
	p.mu.Unlock()
	if failed != nil && wait > 0 {
		return nil, failed
	}
	conn, err := p.dial(ctx, sess)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.fails++
		p.failed, p.again = fmt.Errorf("connection to declare on: %w", err), time.Now().Add(backoff(p.cfg.ReconnectMin, p.cfg.ReconnectMax, p.fails))
		p.observe()
		return nil, p.failed
	}
	p.failed, p.fails = nil, 0
	p.sessions++
	p.observe()
	d := &declareConn{conn: conn, node: p.node(sess), url: sess.url, users: 1}
	d.idle = time.AfterFunc(declareIdle, func() { p.expire(d) })
	d.idle.Stop()
	p.open[d] = struct{}{}
	p.log.Debug("connected", zap.String("broker", brokerVersion(conn)))
	return d, nil
}

func (p *declareConns) lend(d *declareConn) loan {
	var once sync.Once
	leave := func() { once.Do(func() { p.leave(d) }) }
	return loan{conn: d.conn, end: leave, spoil: func() { p.retire(d); leave() }}
}

func (p *declareConns) leave(d *declareConn) {
	p.change(d, func() {
		d.users--
		if d.users == 0 && !d.done {
			d.idle.Reset(declareIdle)
		}
	})
}

// retire takes a connection out of use.
func (p *declareConns) retire(d *declareConn) { p.change(d, func() { p.takeOut(d) }) }

// expire retires a connection that has been idle, unless somebody has just come.
func (p *declareConns) expire(d *declareConn) {
	p.change(d, func() {
		if d.users == 0 {
			p.takeOut(d)
		}
	})
}

func (p *declareConns) takeOut(d *declareConn) {
	d.done = true
	d.idle.Stop()
	if p.shared == d {
		p.shared = nil
		p.observe()
	}
}

// change modifies a connection with the lock held, and closes it if it has no
// users and will get none.
func (p *declareConns) change(d *declareConn, f func()) {
	p.mu.Lock()
	f()
	_, open := p.open[d]
	over := open && d.done && d.users == 0
	if over {
		delete(p.open, d)
	}
	p.mu.Unlock()
	if over && !p.begin(func(context.Context) { closeConn(d.conn) }) { // nobody need wait for the broker
		closeConn(d.conn)
	}
}

// errNoAnswer says that the broker did not answer a declaration.
var errNoAnswer = errors.New("no answer from the broker")

// onDeclareConn runs f on a connection for declarations, and gives the connection
// up when it does not answer before ctx ends.
func (c *Client) onDeclareConn(ctx context.Context, sess *session, alone bool, f func(conn *amqp.Connection) error) error {
	l, err := c.declares.borrow(ctx, sess, alone)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if !c.declares.begin(func(context.Context) { defer l.end(); done <- f(l.conn) }) {
		l.end()
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		l.spoil()
		return fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	}
}
