package amqpx

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
)

// HealthError is returned by Health if there are problems. errors.Is finds ErrBlocked and ErrClosed in it, and
// errors.As the error that ended a connection.
type HealthError struct {
	Problems []HealthProblem // at least one
}

// HealthProblem is one problem that Health has found.
type HealthProblem struct {
	// Part says what has the problem: "publish" or "consume" (the connections), "consumer QUEUE", "queue NAME" (a
	// queue that does not confirm), "clock" or "client".
	Part string `json:"part"`
	// State is the state of that part: a State of a connection, a ConsumerState, "silent" (the broker does not
	// answer), "stuck", "blocked" (handlers wait for their database), "behind" or "closing".
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Reason is the cause if it is known, and empty otherwise. It never contains a password.
	Reason string `json:"reason,omitempty"`
	// Final means that retrying cannot solve the problem, for example because the broker refuses the user or the
	// virtual host, because its certificate is not trusted, or because it has objects that conflict with the
	// strategy's.
	Final bool  `json:"final,omitempty"`
	Err   error `json:"-"`
}

func (p HealthProblem) String() string {
	text := fmt.Sprintf("%s: %s since %s", p.Part, p.State, p.Since.UTC().Format(time.RFC3339))
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

func (e *HealthError) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.String()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the problems.
func (e *HealthError) Unwrap() []error {
	var errs []error
	for _, p := range e.Problems {
		if p.Err != nil {
			errs = append(errs, p.Err)
		}
	}
	return errs
}

// Health returns nil while the client can publish, no queue is stuck, every running Consume is consuming or paused, no
// handler waits for its database, and this process's clock is not seen to be behind (Stats.ClockBehind). Otherwise it
// returns a *HealthError that says what is wrong and since when. It is as cheap as Stats, so a probe may call it every
// second.
//
// Use it for a readiness probe, or to alert on a problem that lasts. A liveness probe should not depend on it, because
// a client reconnects automatically, and restarting the process does not bring a broker back. Slow handlers and late
// messages are not reported here. See ConsumerStats for those.
func (c *Client) Health() error {
	if err := c.opened(); err != nil {
		return err
	}
	s := c.Stats()
	var all []HealthProblem
	if !s.Closing.IsZero() {
		all = append(all, HealthProblem{Part: "client", State: "closing", Since: s.Closing, Err: ErrClosed})
	} else {
		all = append(all, s.Publish.problems("publish")...)
		all = append(all, s.Consume.problems("consume")...)
	}
	for _, q := range s.Stuck {
		if s.Publish.State != StateConnected { // without a connection nothing is confirmed, and the connection's own problem is reported
			break
		}
		all = append(all, HealthProblem{Part: "queue " + q.Queue, State: "stuck", Since: q.Since, Reason: "the queue has stopped confirming; messages for other queues are not affected"})
	}
	for _, k := range s.Consumers {
		silent := cmp.Or(k.Connection, &s.Consume).Silent
		switch {
		case k.State == ConsumerConsuming && !silent.IsZero():
			all = append(all, HealthProblem{Part: "consumer " + k.Queue, State: "silent", Since: silent, Reason: "the broker does not answer on its connection"})
		case k.State == ConsumerPaused: // a pause is intended, so it is not a problem
		case k.State == ConsumerConsuming && k.Blocked > 0:
			all = append(all, HealthProblem{Part: "consumer " + k.Queue, State: "blocked", Since: k.BlockedSince, Reason: fmt.Sprintf("%d of %d running handlers wait; %s", k.Blocked, k.Running, k.Reason), Err: k.Err})
		case k.State != ConsumerConsuming:
			all = append(all, HealthProblem{Part: "consumer " + k.Queue, State: string(k.State), Since: k.Since, Reason: k.Reason, Err: k.Err, Final: final(k.Err, k.Since)})
		}
	}
	if since := s.ClockBehind; !since.IsZero() {
		all = append(all, HealthProblem{Part: "clock", State: "behind", Since: since, Reason: "this process's clock is behind the clocks of the brokers and publishers, so consumers rely on the broker's clock; correct this process's clock"})
	}
	if len(all) == 0 {
		return nil
	}
	return &HealthError{Problems: all}
}

// problems returns the connection's problem, if it has one.
func (s ConnectionStats) problems(part string) []HealthProblem {
	p := HealthProblem{Part: part, State: string(s.State), Since: s.Since, Reason: s.Reason, Err: s.Err}
	switch s.State {
	case "", StateConnected:
		if s.Silent.IsZero() {
			return nil
		}
		p.State, p.Since, p.Reason = "silent", s.Silent, "the broker does not answer; the client reconnects if heartbeats are missed too"
	case StateBlocked:
		p.Err = ErrBlocked
	default:
		p.Final = final(s.Err, s.Since)
	}
	return []HealthProblem{p}
}

// final reports whether an error is permanent and has lasted since the given time for at least wire.RefusalStands.
// Earlier it does not count, because a starting broker refuses all users.
func final(err error, since time.Time) bool {
	return err != nil && permanent(err) && time.Since(since) >= wire.RefusalStands
}

// Stats returns a snapshot of the client's state. It takes microseconds, sends nothing to the broker, and takes no
// lock that a send or a handler waits for.
func (c *Client) Stats() Stats {
	s := Stats{
		Publish: connectionStats(c.pub.Status()), Consume: connectionStats(c.consumers.Status()), Declare: declaringStats(c.decl.Status()),
		Sending: c.sends.len(), Consumers: c.consumerStats(),
	}
	if sess, ok := c.pub.Current(); ok {
		s.InFlight = sess.pub.Window.InFlight()
		for _, q := range sess.pub.Window.Stuck() {
			s.Stuck = append(s.Stuck, StuckQueue(q))
		}
	}
	if since, behind := c.consumers.ClockBehind(); behind {
		s.ClockBehind = since
	}
	if at := c.closingSince.Load(); at != nil {
		s.Closing = *at
	}
	return s
}

func (c *Client) consumerStats() []ConsumerStats {
	stats := c.consumers.Stats()
	all := make([]ConsumerStats, len(stats))
	for i := range stats {
		all[i] = consumerStatsOf(&stats[i])
	}
	slices.SortFunc(all, func(a, b ConsumerStats) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), a.Since.Compare(b.Since))
	})
	return all
}

// consumerStatsOf converts the stats of a consumer to their public form.
func consumerStatsOf(s *consume.Stats) ConsumerStats {
	out := ConsumerStats{
		Queue: s.Queue, State: ConsumerState(s.State), Since: s.Since, Err: s.Err,
		Running: s.Running, Blocked: s.Blocked, BlockedSince: s.BlockedSince, Concurrency: s.Concurrency, Held: s.Held, Waiting: s.Waiting, Settling: s.Settling,
		Prefetch: s.Prefetch, Oldest: s.Oldest, Begun: s.Begun, Lateness: s.Lateness,
		Returned: s.Returned, Handled: s.Handled, Failed: s.Failed,
	}
	switch {
	case s.State == consume.Consuming && s.Blocked > 0:
		out.Reason = "the handlers' database is unavailable" // the error may contain the names of the database's user and host
	case s.Err != nil:
		out.Reason = s.Err.Error()
	}
	if s.Connection != nil {
		connection := connectionStats(*s.Connection)
		out.Connection = &connection
	}
	return out
}

// connectionStats converts the status of a publishing or consuming connection.
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

// declaringStats converts the status of the connection for declarations.
func declaringStats(s declare.Status) ConnectionStats {
	out := ConnectionStats{State: State(s.State), Since: s.Since, Broker: s.Broker, Address: s.Address, Sessions: s.Sessions, Err: s.Err}
	if s.Err != nil {
		out.Reason = s.Err.Error()
	}
	return out
}
