package wire

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sparse"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// Session is one connection of a Link.
type Session struct {
	Conn   *amqp.Connection
	Broker string // product and version; see the function Broker
	URL    string
	Gen    uint64 // number of this session within its Link, counted from 1
	Ending *Ending

	blocked <-chan amqp.Blocking
	probing atomic.Bool
	silent  atomic.Pointer[time.Time] // when the broker stopped answering; nil while it answers
}

// Silent returns the time at which the broker stopped answering, or the zero time while it answers.
func (s *Session) Silent() time.Time {
	if since := s.silent.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// Event reports a change of a Link to its observer. A failed attempt to connect is reported as StateDisconnected even
// before the first connection.
type Event struct {
	State   State
	Attempt int    // for StateConnecting; counted from 1 since the last connection that lasted
	Broker  string // for StateConnected: product and version
	Reason  string // for StateBlocked
	Err     error  // for StateDisconnected
}

// Link maintains a connection. It dials, sets the connection up, waits for its end, and starts again after a capped
// back-off with jitter. amqp091's own recovery is not used, because it gives up after a fixed number of attempts. T is
// the type through which the connection is used.
type Link[T any] struct {
	role string
	cfg  Config
	log  *zap.Logger
	down sparse.Log
	// setup makes a new connection usable. If it fails, the connection is closed.
	setup func(ctx context.Context, s *Session) (T, error)
	tell  func(Event)

	nodes  *nodes          // used only by run
	over   context.Context // when it ends, the connection is closed abruptly
	cancel context.CancelFunc
	ended  chan struct{}

	now atomic.Pointer[moment[T]] // stored only by run
}

// moment is a Status and a channel that announces the next one.
type moment[T any] struct {
	Status

	use  T             // the value that setup returned for the session
	next chan struct{} // closed when a later moment replaces this one
}

// NewLink returns a Link that is not started. The role distinguishes its connections from others of the same client.
// The parameter over is a context whose end closes the connection abruptly. The function tell is called in the
// goroutine that maintains the connection, so it must not block.
func NewLink[T any](over context.Context, role string, cfg Config, setup func(context.Context, *Session) (T, error), tell func(Event)) *Link[T] {
	l := &Link[T]{
		role: role, cfg: cfg, setup: setup, tell: tell, nodes: newNodes(cfg.Nodes), over: over,
		log: cfg.Log.Named(role), ended: make(chan struct{}),
	}
	l.now.Store(&moment[T]{next: make(chan struct{})})
	return l
}

// Start starts connecting in the background.
func (l *Link[T]) Start() {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Close calls cancel
	l.cancel = cancel
	go l.run(ctx)
}

// Close closes the connection and waits until that is done.
func (l *Link[T]) Close() {
	l.cancel()
	<-l.ended
}

// Status returns the Link's current status. It does not lock.
func (l *Link[T]) Status() Status { return l.now.Load().Status }

// Current returns the value that setup returned for the connection, and whether there is a connection.
func (l *Link[T]) Current() (use T, ok bool) {
	m := l.now.Load()
	return m.use, m.Session != nil
}

// Wait returns the value that setup returned for the connection. If there is no connection, it waits for one. If open
// is true, it also waits until the broker accepts publishes. When ctx ends, the error wraps ErrBlocked or the reason
// why there is no connection. After Close the error is ErrClosed.
func (l *Link[T]) Wait(ctx context.Context, open bool) (use T, err error) {
	for {
		m := l.now.Load()
		switch {
		case errors.Is(m.Err, ErrClosed):
			return use, ErrClosed
		case m.Session != nil && (m.Alarm == "" || !open):
			return m.use, nil
		}
		select {
		case <-m.next:
		case <-ctx.Done():
			return use, m.why(ctx.Err())
		}
	}
}

// tellAfter is how long First waits for a connection before a failed attempt makes it call tell.
const tellAfter = 3 * time.Second

// RefusalStands is how long a broker must refuse access before the refusal is treated as permanent. A broker that is
// starting or stopping also refuses access, because it does not know its users and virtual hosts.
const RefusalStands = 2 * time.Second

// First waits for the first connection. It returns early if the error shows that further attempts are pointless. The
// first time that an attempt fails after 3 s, it calls tell with the error, unless tell is nil.
func (l *Link[T]) First(ctx context.Context, tell func(why error)) error {
	began := time.Now()
	for {
		m := l.now.Load()
		switch {
		case errors.Is(m.Err, ErrClosed):
			return ErrClosed
		case m.Session != nil:
			return nil
		case m.Err != nil && l.cfg.Permanent(m.Err) && (m.Refused.IsZero() || time.Since(m.Refused) >= RefusalStands):
			return m.Err
		case m.Err != nil && tell != nil && time.Since(began) >= tellAfter:
			tell(m.Err)
			tell = nil
		}
		select {
		case <-m.next:
		case <-ctx.Done():
			return m.why(ctx.Err())
		}
	}
}

// why returns the error for a caller that waited without success for a connection that accepts publishes.
func (s Status) why(err error) error {
	switch {
	case s.Alarm != "":
		return fmt.Errorf("%w (%s): %w", ErrBlocked, s.Alarm, err)
	case s.Err != nil:
		return fmt.Errorf("no connection (%w): %w", s.Err, err)
	}
	return fmt.Errorf("no connection yet: %w", err)
}

// run is the supervisor goroutine. Only run and the functions that it calls change the state.
func (l *Link[T]) run(ctx context.Context) {
	defer close(l.ended)
	defer func() {
		l.become(closed{})
		l.tell(Event{State: StateClosed})
	}()
	l.become(started{})
	for attempt := 1; ; attempt++ {
		// Do not change the status here. That would wake waiting callers, which would check the last error again
		// although this attempt may be about to succeed.
		l.tell(Event{State: StateConnecting, Attempt: attempt})
		s, what, err := l.connect(ctx)
		if err == nil {
			what = "connection lost; reconnecting"
			began := time.Now()
			err = l.keep(ctx, s)
			if time.Since(began) > l.cfg.ReconnectMax {
				attempt = 0 // it lasted, so the next back-off starts small
			}
		}
		if ctx.Err() != nil {
			return
		}
		l.become(lost{err})
		l.tell(Event{State: StateDisconnected, Err: err})
		pause := wait.Backoff(l.cfg.ReconnectMin, l.cfg.ReconnectMax, attempt)
		l.down.Warn(l.log, what+sparse.Kind(err), what, zap.Error(err), zap.Duration("retry_in", pause))
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

// setupTimeout limits the setup of a connection, unless DialTimeout is longer.
const setupTimeout = 30 * time.Second

// connect tries one node, sets the connection up and makes it available to waiting callers. If it fails, the returned
// string describes the step that failed.
func (l *Link[T]) connect(ctx context.Context) (s *Session, what string, err error) {
	raw := l.nodes.next()
	conn, err := Open(ctx, l.over, l.cfg, raw, l.role)
	if err != nil {
		return nil, "could not connect to the broker; trying again", l.nodes.fail(err)
	}
	s = &Session{Conn: conn, Broker: Broker(conn), URL: raw, Gen: l.Status().Sessions + 1, Ending: Watch(conn)}
	s.blocked = conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	use, err := l.prepare(ctx, s)
	if err != nil {
		CloseConn(conn)
		return nil, "connected to the broker, but could not set up the connection; trying again", l.nodes.fail(channels.Advised(s.Ending.Explain(err)))
	}
	l.nodes.connected()
	l.become(ready{s}, use)
	l.tell(Event{State: StateConnected, Broker: s.Broker})
	if reason := l.Status().Alarm; reason != "" {
		l.tell(Event{State: StateBlocked, Reason: reason})
	}
	l.log.Info("connected to the broker", zap.String("broker", s.Broker), zap.Uint64("session", s.Gen))
	return s, "", nil
}

// prepare runs setup. Because setup may publish, the broker may block it, so prepare records alarms in the meantime.
// Callers that wait for the session then learn why there is none.
func (l *Link[T]) prepare(ctx context.Context, s *Session) (use T, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.cfg.DialTimeout, setupTimeout))
	defer cancel()
	prepared := make(chan struct{})
	go func() {
		defer close(prepared)
		use, err = l.setup(ctx, s)
	}()
	for blocked := s.blocked; ; {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			l.setBlocked(b)
		case <-prepared:
			return use, err
		}
	}
}

// keep waits for the end of the connection and returns the reason. It closes the connection when ctx ends.
func (l *Link[T]) keep(ctx context.Context, s *Session) error {
	closed := s.Conn.NotifyClose(make(chan *amqp.Error, 1))
	for blocked := s.blocked; ; {
		select {
		case <-ctx.Done():
			l.become(closing{})
			CloseConn(s.Conn)
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
			l.tell(l.setBlocked(b))
		}
	}
}

// setBlocked records that the broker blocks or no longer blocks publishing, and returns the corresponding event.
func (l *Link[T]) setBlocked(b amqp.Blocking) Event {
	if !b.Active {
		l.become(allClear{})
		l.log.Info("the broker accepts publishes again")
		return Event{State: StateUnblocked}
	}
	reason := b.Reason
	if reason == "" {
		reason = "no reason given"
	}
	l.become(alarm{reason})
	l.log.Warn("the broker blocks publishers", zap.String("reason", reason))
	return Event{State: StateBlocked, Reason: reason}
}

// become changes the state of the link and wakes the callers that wait for a change. If the link becomes ready, the
// parameter use is the value that setup returned.
func (l *Link[T]) become(c change, use ...T) {
	was := l.now.Load()
	m := &moment[T]{Status: was.step(c, time.Now()), next: make(chan struct{})}
	if m.Session != nil {
		m.use = append(use, was.use)[0]
	}
	l.now.Store(m)
	close(was.next)
}

// silentAfter is how long a broker may take to answer before it is reported as silent.
const silentAfter = time.Second

// Probe asks the broker to open a channel, and waits for the answer or the end of the connection. If no answer arrives
// within a second, the session counts as silent until one does. Heartbeats would take longer to detect this, and may
// continue even though the broker does nothing else.
func (l *Link[T]) Probe() {
	s := l.Status().Session
	if s == nil || !s.probing.CompareAndSwap(false, true) {
		return
	}
	defer s.probing.Store(false)
	asked := time.Now()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if ch, err := s.Conn.Channel(); err == nil { // also returns, with an error, when the connection ends
			_ = ch.Close()
		}
	}()
	select {
	case <-answered:
		return
	case <-time.After(silentAfter):
	}
	s.silent.Store(&asked)
	<-answered
	s.silent.Store(nil)
}
