package amqpx

import (
	"cmp"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
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

	// ClockBehind is since when this process's clock is seen behind those of the brokers
	// and of the publishers, by two seconds or more; zero while it is not. Consumers then
	// do not go by it.
	ClockBehind time.Time `json:"clock_behind,omitzero"`

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
	ConsumerPaused    ConsumerState = "paused"    // it begins no handlers, see PauseConsuming
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
	// Held counts messages that the broker has handed out and whose instant is to come.
	Held int `json:"held"`
	// Waiting counts messages that could begin and that no handler has begun; Settling
	// those whose retry or dead letter is being published. Together with Held and Running
	// they are at most Prefetch on one connection, which grows with Held.
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
	// Returned counts messages that came before their instant and were sent back to the
	// broker for the rest.
	Returned uint64 `json:"returned"`
	// Handled counts the handlers that have returned, Failed those of them with
	// an error.
	Handled uint64 `json:"handled"`
	Failed  uint64 `json:"failed"`
}

// Stats returns the client's state. It takes microseconds, asks nobody, and takes no
// lock that a send or a handler waits for.
func (c *Client) Stats() Stats {
	s := Stats{
		Publish: connectionStats(c.pub.Status()), Consume: connectionStats(c.con.Status()), Declare: declaringStats(c.decl.Status()),
		Sending: c.sends.len(), Consumers: c.consumerStats(),
	}
	if sess, ok := c.pub.Current(); ok {
		s.InFlight = sess.pub.Window.InFlight()
		for _, q := range sess.pub.Window.Stuck() {
			s.Stuck = append(s.Stuck, StuckQueue(q))
		}
	}
	if _, since, behind := c.clocks.Behind(c.cfg.Now()); behind {
		s.ClockBehind = since
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

// connectionStats is what Stats shows of a link.
func connectionStats(s wire.Status) ConnectionStats {
	out := ConnectionStats{State: State(s.State), Since: s.Since, Sessions: s.Sessions}
	if s.Session != nil {
		out.Broker, out.Address, out.Reason = s.Session.Broker, wire.Address(s.Session.URL), s.Alarm
	}
	switch {
	case s.State == wire.StateConnected && s.Session != nil:
		out.Silent = s.Session.Silent()
	case s.State != wire.StateClosed && s.Session == nil && s.Err != nil:
		out.Err, out.Reason = s.Err, s.Err.Error()
	}
	return out
}

// declaringStats is what Stats shows of the connection for declarations.
func declaringStats(s declare.Status) ConnectionStats {
	out := ConnectionStats{State: State(s.State), Since: s.Since, Broker: s.Broker, Address: s.Address, Sessions: s.Sessions, Err: s.Err}
	if s.Err != nil {
		out.Reason = s.Err.Error()
	}
	return out
}

// consumerState is what a consumer is doing, since when and why.
type consumerState struct {
	state ConsumerState
	since time.Time
	err   error
}

// become records what the consumer is doing now. The instant of a state that goes on
// stays.
func (k *consumer) become(state ConsumerState, err error) {
	was := k.state.Load()
	if was != nil && was.state == state && was.err == nil && err == nil {
		return
	}
	next := &consumerState{state, time.Now(), err}
	if was != nil && was.state == state {
		next.since = was.since
	}
	if state != ConsumerConsuming { // what was handed out goes back
		k.waiting.Store(0)
		k.held.Store(0)
		k.places.Store(int64(k.prefetch))
		k.oldest.Store(0)
	}
	k.state.Store(next)
}

// look records what waits for a handler; only the intake calls it.
func (k *consumer) look(s *subscription) {
	k.waiting.Store(int64(s.held.len() - len(s.held.early)))
	k.held.Store(int64(len(s.held.early)))
	k.places.Store(int64(s.room.places))
	oldest := int64(0)
	if at := s.held.oldest(); !at.IsZero() && k.state.Load().state != ConsumerPaused {
		oldest = at.UnixNano()
	}
	k.oldest.Store(oldest)
}

func (k *consumer) stats() ConsumerStats {
	at := k.state.Load()
	s := ConsumerStats{
		Queue: k.queue, State: at.state, Since: at.since, Err: at.err,
		Running: int(k.running.Load()), Concurrency: k.concurrency,
		Waiting: int(k.waiting.Load()), Settling: int(k.settling.Load()), Prefetch: int(k.places.Load()),
		Held: int(k.held.Load()), Returned: k.returned.Load(),
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
