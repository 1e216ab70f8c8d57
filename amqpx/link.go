package amqpx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// link keeps one connection alive for ever: it dials, sets up, waits for the
// end, and begins again after a capped and jittered back-off. amqp091's own
// recovery stays off, because it gives up after a fixed number of tries.
type link struct {
	role  string
	cfg   Config
	hooks hooks
	log   *zap.Logger
	lost  sparse // log lines
	// setup makes a fresh connection usable; an error closes it.
	setup func(ctx context.Context, conn *amqp.Connection) (*session, error)

	nodes  *nodes          // of the supervisor
	over   context.Context // cuts the connection
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	cur     *session
	blocked string        // reason; empty when not blocked
	lastErr error         // why there is no session
	refused time.Time     // since when the broker has refused access at every attempt; zero: it has not
	fatal   error         // the first connection failed for good, or the link was closed
	changed chan struct{} // closed, and replaced, when any of the above changes

	state   atomic.Pointer[ConnectionStats] // for stats; nil before the start
	watched atomic.Pointer[session]         // likewise; nil for none
}

// session is one usable connection.
type session struct {
	conn   *amqp.Connection
	broker string // product and version
	url    string
	gen    uint64
	pub    *publisher    // nil on the consuming link
	done   chan struct{} // closed when the connection has ended

	blocked <-chan amqp.Blocking
	probing atomic.Bool
	silent  atomic.Pointer[time.Time] // since when the broker owes an answer; nil while it answers
	proof   atomic.Pointer[proof]     // nil: nothing may be sent by an instant now
}

func newLink(over context.Context, role string, cfg Config, h hooks, setup func(context.Context, *amqp.Connection) (*session, error)) *link {
	return &link{
		role: role, cfg: cfg, hooks: h, setup: setup, nodes: cfg.nodes(), over: over,
		log:     cfg.Logger.Named(role),
		ended:   make(chan struct{}),
		changed: make(chan struct{}),
	}
}

func (l *link) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go l.run(ctx)
}

// close ends the connection and waits for the supervisor.
func (l *link) close() {
	l.cancel()
	<-l.ended
}

func (l *link) update(f func()) {
	l.mu.Lock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
}

func (l *link) run(ctx context.Context) {
	defer close(l.ended)
	defer l.become(StateEvent{State: StateClosed}, func() { l.cur, l.fatal = nil, ErrClosed })

	var gen uint64
	for attempt := 1; ; attempt++ {
		l.event(StateEvent{State: StateConnecting, Attempt: attempt})
		sess, err := l.connect(ctx)
		if err == nil {
			gen++
			sess.gen = gen
			l.nodes.connected()
			began := time.Now()
			err = l.serve(ctx, sess)
			if time.Since(began) > l.cfg.ReconnectMax {
				attempt = 0 // it held; the next back-off starts small
			}
		}
		if ctx.Err() != nil {
			return
		}
		refused := refusedSince(l.refused, err)
		if sess == nil {
			err = l.nodes.fail(err)
		}
		l.become(StateEvent{State: StateDisconnected, Err: err}, func() { l.cur, l.blocked, l.lastErr, l.refused = nil, "", err, refused })
		wait := backoff(l.cfg.ReconnectMin, l.cfg.ReconnectMax, attempt)
		what := "connection lost; connecting again"
		if sess == nil {
			what = "connected, but cannot work there; trying again"
			if _, ok := errors.AsType[*DialError](err); ok {
				what = "cannot connect; trying again"
			}
		}
		l.lost.warn(l.log, what+kindOf(err), what, zap.Error(err), zap.Duration("retry_in", wait))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// refusedSince is the instant of the first of several refusals in a row.
func refusedSince(since time.Time, err error) time.Time {
	switch {
	case !isCode(err, amqp.AccessRefused) && !isCode(err, amqp.NotAllowed):
		return time.Time{}
	case since.IsZero():
		return time.Now()
	}
	return since
}

// backoff doubles from lo to hi and takes a random point in the upper half, so
// that many clients do not return at once.
func backoff(lo, hi time.Duration, attempt int) time.Duration {
	d := hi
	if shift := max(attempt, 1) - 1; shift < 32 && lo<<shift>>shift == lo && lo<<shift < hi {
		d = lo << shift
	}
	return d/2 + rand.N(d/2+1)
}

// connect tries one node.
func (l *link) connect(ctx context.Context) (*session, error) {
	raw := l.nodes.next()
	conn, err := dial(ctx, l.over, l.cfg, raw, l.cfg.ConnectionName+" "+l.role)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(l.cfg.DialTimeout, 30*time.Second))
	defer cancel()
	sess, err := l.prepare(ctx, conn)
	if err != nil {
		closeConn(conn)
		return nil, err
	}
	sess.broker, sess.url = brokerVersion(conn), raw
	return sess, nil
}

// prepare sets a connection up. That may publish, and so be what the broker blocks:
// whoever waits for the session is to learn why there is none.
func (l *link) prepare(ctx context.Context, conn *amqp.Connection) (sess *session, err error) {
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		sess, err = l.setup(ctx, conn)
	}()
	for open := blocked; ; {
		select {
		case b, ok := <-open:
			if !ok {
				open = nil
				continue
			}
			l.setBlocked(b)
		case <-ready:
			if sess != nil {
				sess.blocked = blocked
			}
			return sess, err
		}
	}
}

// serve publishes the session to those who wait for it, and returns when the
// connection has ended, or ends it when ctx does.
func (l *link) serve(ctx context.Context, sess *session) error {
	closed := sess.conn.NotifyClose(make(chan *amqp.Error, 1))
	blocked := sess.blocked
	l.become(StateEvent{State: StateConnected, Broker: sess.broker}, func() { l.cur, l.lastErr = sess, nil })
	if reason := l.blockedReason(); reason != "" {
		l.event(StateEvent{State: StateBlocked, Reason: reason})
	}
	l.log.Info("connected", zap.String("broker", sess.broker), zap.Uint64("session", sess.gen))
	defer close(sess.done)
	for {
		select {
		case <-ctx.Done():
			l.update(func() { l.cur, l.lastErr = nil, ErrClosed })
			closeConn(sess.conn)
			return ctx.Err()
		case err := <-closed:
			if err == nil {
				return errors.New("connection closed")
			}
			return fmt.Errorf("connection closed: %w", err)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			l.event(l.setBlocked(b))
		}
	}
}

// setBlocked notes that publishing is blocked, or not any more, and gives the event
// of that.
func (l *link) setBlocked(b amqp.Blocking) StateEvent {
	if b.Active {
		reason := b.Reason
		if reason == "" {
			reason = "no reason given"
		}
		l.update(func() { l.blocked = reason })
		l.log.Warn("broker blocks publishing", zap.String("reason", reason))
		return StateEvent{State: StateBlocked, Reason: reason}
	}
	l.update(func() { l.blocked = "" })
	l.log.Info("broker takes publishes again")
	return StateEvent{State: StateUnblocked}
}

// wait returns the current session, or waits for one. With unblocked it also
// waits until the broker takes publishes. At the end of ctx the error wraps
// ErrBlocked or the reason why there is no connection.
func (l *link) wait(ctx context.Context, unblocked bool) (*session, error) {
	for {
		l.mu.Lock()
		cur, blocked, last, fatal, changed := l.cur, l.blocked, l.lastErr, l.fatal, l.changed
		l.mu.Unlock()
		switch {
		case fatal != nil:
			return nil, fatal
		case cur != nil && (blocked == "" || !unblocked):
			return cur, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, notReady(ctx, blocked, last)
		}
	}
}

// notReady is why there is no session when ctx ends.
func notReady(ctx context.Context, blocked string, last error) error {
	switch {
	case blocked != "":
		return fmt.Errorf("%w (%s): %w", ErrBlocked, blocked, ctx.Err())
	case last != nil:
		return fmt.Errorf("no connection (%w): %w", last, ctx.Err())
	}
	return fmt.Errorf("no connection yet: %w", ctx.Err())
}

// current is the session there is, nil for none.
func (l *link) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur
}

// first waits for the first session, and returns early on a permanent error. After
// tellAfter it tells once why there is none yet, unless tell is nil.
func (l *link) first(ctx context.Context, tell func(why error)) error {
	began := time.Now()
	for {
		l.mu.Lock()
		cur, blocked, last, fatal, changed, refused := l.cur, l.blocked, l.lastErr, l.fatal, l.changed, l.refused
		l.mu.Unlock()
		switch {
		case fatal != nil:
			return fatal
		case cur != nil:
			return nil
		case last != nil && permanent(last) && (refused.IsZero() || time.Since(refused) >= refusalStands):
			return last
		case last != nil && tell != nil && time.Since(began) >= tellAfter:
			tell(last)
			tell = nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return notReady(ctx, blocked, last)
		}
	}
}

// probe asks the broker for an answer, and records in silent when none comes within
// stuckAfter. Heartbeats take longer, and may go on while nothing else does.
func (l *link) probe() {
	sess := l.current()
	if sess == nil || !sess.probing.CompareAndSwap(false, true) {
		return
	}
	defer sess.probing.Store(false)
	asked := time.Now()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if ch, err := sess.conn.Channel(); err == nil { // ends with the connection
			_ = ch.Close()
		}
	}()
	select {
	case <-answered:
		return
	case <-time.After(stuckAfter):
	}
	sess.silent.Store(&asked)
	<-answered
	sess.silent.Store(nil)
}

// tellAfter is how long Open waits in silence.
const tellAfter = 3 * time.Second

// blockedReason is empty when the broker takes publishes.
func (l *link) blockedReason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked
}

func (l *link) event(e StateEvent) {
	l.observe(e)
	l.tell(e)
}

// become changes what others wait for together with what stats shows of it: whoever is
// woken sees both.
func (l *link) become(e StateEvent, change func()) {
	l.update(func() {
		change()
		l.observe(e)
	})
	l.tell(e)
}

func (l *link) tell(e StateEvent) {
	e.Connection = l.role
	l.hooks.connectionState(e)
}
