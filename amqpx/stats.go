package amqpx

import (
	"cmp"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Stats is what a client knows of itself at one instant. The broker is not asked,
// so it says nothing of messages that wait there: QueueInfo and the management
// API do.
type Stats struct {
	// Publish and Consume are the client's lasting connections. Declare is the one
	// for declarations, which exists only while there is something to declare.
	Publish ConnectionStats `json:"publish"`
	Consume ConnectionStats `json:"consume"`
	Declare ConnectionStats `json:"declare"`

	// Sending counts messages between the call of a Send, SendBatch or SendEach
	// and its outcome, those of consumers (retries, dead letters) included.
	Sending int `json:"sending"`
	// InFlight counts those of them that were written to the current connection
	// and await their confirm. Config.MaxInFlight bounds it, but for those into Stuck
	// queues.
	InFlight int `json:"in_flight"`
	// Stuck are queues that have confirmed nothing for a second or more although
	// messages wait for it. Only their own messages wait.
	Stuck []StuckQueue `json:"stuck,omitempty"`

	// Consumers are the calls of Consume that run, by queue.
	Consumers []ConsumerStats `json:"consumers,omitempty"`

	// Closing is when Close was called; zero before.
	Closing time.Time `json:"closing,omitzero"`
}

// ConnectionStats is the state of one connection.
type ConnectionStats struct {
	// State is connecting (before the first connection), connected, blocked,
	// disconnected (the client is connecting again) or closed; empty if there is no
	// connection and none is wanted: before the first Consume, and of Declare most
	// of the time.
	State State `json:"state,omitempty"`
	// Since is when that state began. Failed attempts to connect again do not
	// change it.
	Since time.Time `json:"since,omitzero"`
	// Silent is since when the broker has not answered on a connection that stands. The
	// client asks when a queue is stuck; the loss of the connection, by its heartbeats,
	// may follow. Zero while it answers.
	Silent time.Time `json:"silent,omitzero"`
	// Broker is the product and version, such as "RabbitMQ 4.3.1", and Address the
	// host and port of the URL, of a connection that stands.
	Broker  string `json:"broker,omitempty"`
	Address string `json:"address,omitempty"`
	// Sessions counts the connections made so far.
	Sessions uint64 `json:"sessions"`
	// Reason is why the broker blocks or why there is no connection. It never
	// contains a password.
	Reason string `json:"reason,omitempty"`
	// Err is the error of the last attempt to connect, or the end of the
	// connection, while there is none.
	Err error `json:"-"`
}

// StuckQueue is a queue that does not confirm.
type StuckQueue struct {
	Queue string    `json:"queue"`
	Since time.Time `json:"since"` // the last confirm, or the first message that waits for one
}

// ConsumerState is what a call of Consume is doing.
type ConsumerState string

// States of a consumer.
const (
	ConsumerStarting  ConsumerState = "starting"  // it has not consumed yet
	ConsumerConsuming ConsumerState = "consuming" // the broker delivers to it
	ConsumerDown      ConsumerState = "down"      // it did consume, and begins again
	ConsumerEnding    ConsumerState = "ending"    // handlers finish
)

// ConsumerStats is one call of Consume.
type ConsumerStats struct {
	Queue string        `json:"queue"`
	State ConsumerState `json:"state"`
	Since time.Time     `json:"since"`
	// Reason and Err are why a consumer is not consuming.
	Reason string `json:"reason,omitempty"`
	Err    error  `json:"-"`

	// Running counts handlers that run, of at most Concurrency. It includes those
	// of a connection that was lost.
	Running     int `json:"running"`
	Concurrency int `json:"concurrency"`
	// Waiting counts messages that the broker has handed out and no handler has
	// begun; Settling those whose retry or dead letter is being published. Together
	// with Running they are at most Prefetch on one connection.
	Waiting  int `json:"waiting"`
	Settling int `json:"settling"`
	Prefetch int `json:"prefetch"`
	// Oldest is since when the first of Waiting could have begun; zero if there is
	// none. It is the lag that is due to this process: too few handlers, or slow
	// ones.
	Oldest time.Time `json:"oldest,omitzero"`
	// Begun is when the last handler began, and Lateness how long after its
	// message's due instant, by this process's clock. It is 0 if that message had
	// no due instant. It is the lag of the whole way: delay queues, a queue that
	// was full of others, and this process.
	Begun    time.Time     `json:"begun,omitzero"`
	Lateness time.Duration `json:"lateness_ns"`
	// Handled counts the handlers that have returned, Failed those of them with
	// an error.
	Handled uint64 `json:"handled"`
	Failed  uint64 `json:"failed"`
}

// Stats tells the client's state. It takes microseconds, asks nobody, and takes no
// lock that a send or a handler waits for.
func (c *Client) Stats() Stats {
	s := Stats{
		Publish: c.pub.stats(), Consume: c.con.stats(), Declare: c.declares.stats(),
		Sending: c.sends.len(), Consumers: c.consumerStats(),
	}
	if sess := c.pub.watched.Load(); sess != nil {
		s.InFlight = int(sess.pub.flow.inflight.Load())
		if stuck := sess.pub.flow.stuck.Load(); stuck != nil {
			s.Stuck = slices.Clone(*stuck)
		}
	}
	if at := c.closingSince.Load(); at != nil {
		s.Closing = *at
	}
	return s
}

func (c *Client) consumerStats() []ConsumerStats {
	c.mu.Lock()
	all := make([]ConsumerStats, 0, len(c.running))
	for k := range c.running {
		all = append(all, k.stats())
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b ConsumerStats) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), a.Since.Compare(b.Since))
	})
	return all
}

// stats is the state that event has noted last, and whether the broker answers.
func (l *link) stats() ConnectionStats {
	s := l.observed()
	if sess := l.watched.Load(); sess != nil && s.State == StateConnected {
		if since := sess.silent.Load(); since != nil {
			s.Silent = *since
		}
	}
	return s
}

func (l *link) observed() ConnectionStats {
	if s := l.state.Load(); s != nil {
		return *s
	}
	return ConnectionStats{}
}

// observe keeps the state for stats. Only the supervisor calls it.
func (l *link) observe(e StateEvent) {
	s := l.observed()
	was := s.State
	switch e.State {
	case StateConnecting:
		if was == "" {
			s.State = StateConnecting
		}
	case StateConnected:
		s.State, s.Broker, s.Reason, s.Err = StateConnected, e.Broker, "", nil
		s.Address = address(l.cur.url)
		s.Sessions++
		l.watched.Store(l.cur)
	case StateBlocked:
		s.State, s.Reason = StateBlocked, e.Reason
	case StateUnblocked:
		s.State, s.Reason = StateConnected, ""
	case StateDisconnected:
		s.setDown(e.Err)
		l.watched.Store(nil)
	case StateClosed:
		s = ConnectionStats{State: StateClosed, Sessions: s.Sessions, Since: s.Since}
		l.watched.Store(nil)
	}
	if s.State != was {
		s.Since = time.Now()
	}
	l.state.Store(&s)
}

// setDown is the state without a connection. Before the first one it stays
// connecting.
func (s *ConnectionStats) setDown(err error) {
	if s.Sessions > 0 {
		s.State = StateDisconnected
	}
	s.Broker, s.Address = "", ""
	s.Err, s.Reason = err, err.Error()
}

// address is the host and port of a URL that was dialled.
func address(rawURL string) string {
	uri, err := ParseURL(rawURL)
	if err != nil {
		return ""
	}
	return hostPort(uri)
}

// stats is that of the shared connection.
func (p *declareConns) stats() ConnectionStats {
	s := p.state.Load()
	if s == nil {
		return ConnectionStats{}
	}
	out := s.ConnectionStats
	if out.State == StateConnected && s.conn.IsClosed() { // nobody has looked since
		out = ConnectionStats{Sessions: out.Sessions}
	}
	return out
}

// declareState is what stats shows of the connection for declarations.
type declareState struct {
	ConnectionStats
	conn *amqp.Connection
}

// observe keeps the state for stats; the caller holds p.mu.
func (p *declareConns) observe() {
	var s declareState
	switch {
	case p.closed:
		s.State = StateClosed
	case p.shared != nil:
		s.State, s.conn = StateConnected, p.shared.conn
		s.Broker, s.Address = brokerVersion(p.shared.conn), address(p.shared.url)
	case p.failed != nil:
		s.State, s.Err, s.Reason = StateDisconnected, p.failed, p.failed.Error()
	}
	s.Sessions = p.sessions
	before := p.state.Load()
	switch {
	case s.State == "":
	case before != nil && before.State == s.State && before.conn == s.conn:
		s.Since = before.Since
	default:
		s.Since = time.Now()
	}
	p.state.Store(&s)
}

// consumerState is what a consumer is doing, since when and why.
type consumerState struct {
	state ConsumerState
	since time.Time
	err   error
}

// become notes what the consumer is doing now. The instant of a state that goes on
// stays.
func (k *consumer) become(state ConsumerState, err error) {
	next := &consumerState{state, time.Now(), err}
	if was := k.state.Load(); was != nil && was.state == state {
		next.since = was.since
	}
	if state != ConsumerConsuming { // what was handed out goes back
		k.waiting.Store(0)
		k.oldest.Store(0)
	}
	k.state.Store(next)
}

// look notes what waits for a handler; only the intake calls it.
func (k *consumer) look(s *subscription) {
	k.waiting.Store(int64(len(s.waiting) + len(s.behind)))
	oldest := int64(0)
	if len(s.waiting) > 0 {
		oldest = s.waiting[0].at.UnixNano()
	}
	k.oldest.Store(oldest)
}

func (k *consumer) stats() ConsumerStats {
	at := k.state.Load()
	s := ConsumerStats{
		Queue: k.queue, State: at.state, Since: at.since, Err: at.err,
		Running: int(k.running.Load()), Concurrency: k.concurrency,
		Waiting: int(k.waiting.Load()), Settling: int(k.settling.Load()), Prefetch: k.prefetch,
		Oldest: instantOf(k.oldest.Load()), Begun: instantOf(k.begunAt.Load()), Lateness: time.Duration(k.lateness.Load()),
		Handled: k.handled.Load(), Failed: k.failed.Load(),
	}
	if at.err != nil {
		s.Reason = at.err.Error()
	}
	return s
}

// instantOf is an instant that was kept in nanoseconds; 0 is none.
func instantOf(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}
