package amqptest

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/codec"
)

// faults are those in effect.
type faults struct {
	named        []*fault
	denied       []*denial
	controls     []*control
	alarm        string // why publishers are blocked
	refuseDials  int
	refuseLogins int
}

// fault is what happens to messages of one exchange or queue.
type fault struct {
	name           string
	refusal        *rabbit.Error
	returns, nacks bool
	silent         bool
	held           []func() // confirms that are kept back
}

type denial struct {
	user       string
	permission Permission
	pattern    *regexp.Regexp
}

type control struct{ decide func(Frame) Action }

// refusal returns the error with which declaring a name, or reading from it, is refused.
func (f *faults) refusal(name string) *rabbit.Error {
	for _, x := range f.named {
		if x.refusal != nil && x.name == name {
			return x.refusal
		}
	}
	return nil
}

// effect is the sum of the faults of a message's exchange and queues.
type effect struct {
	refusal        *rabbit.Error
	returns, nacks bool
	silent         *fault
}

// of returns the effect of the faults of these exchanges and queues.
func (f *faults) of(names []string) effect {
	var e effect
	for _, x := range f.named {
		if !slices.Contains(names, x.name) {
			continue
		}
		e.refusal = cmp.Or(x.refusal, e.refusal)
		e.returns, e.nacks = e.returns || x.returns, e.nacks || x.nacks
		if x.silent {
			e.silent = x
		}
	}
	return e
}

// add appends x to a list of faults, and returns the function that removes it and then
// calls after.
func add[T comparable](s *Server, list *[]T, x T, after func()) (undo func()) {
	s.do(func() { *list = append(*list, x) })
	return func() {
		s.do(func() {
			before := len(*list)
			*list = slices.DeleteFunc(*list, func(y T) bool { return y == x })
			if after != nil && len(*list) < before {
				after()
			}
		})
	}
}

// Refuse answers whatever is published to an exchange or queue, and every
// declaration of it, binding to it and consumer of it, by closing the channel
// with code and text, or the connection where the code says so (530, 541 and
// others). The text gets the code's name before it: Refuse("q", 404, "no queue
// 'q'") says "NOT_FOUND - no queue 'q'".
func (s *Server) Refuse(name string, code int, text string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, refusal: rabbit.Refusal(code, "%s", text)}, nil)
}

// RefuseMethod answers a client's method about a queue or exchange as Refuse does, and leaves
// all other methods alone: RefuseMethod("basic.consume", "q", 541, "…") is a queue that can be
// declared although its process is gone. An empty name means any.
func (s *Server) RefuseMethod(method, name string, code int, text string) (undo func()) {
	refusal := rabbit.Refusal(code, "%s", text)
	return s.Control(func(f Frame) Action {
		if f.FromClient && f.Method == method && (name == "" || f.Name == name) {
			return Action{refusal: refusal}
		}
		return Action{}
	})
}

// Return returns as unroutable all mandatory messages to an exchange or a
// queue, and drops other messages to it.
func (s *Server) Return(name string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, returns: true}, nil)
}

// Nack answers messages to an exchange or a queue with basic.nack, and drops them.
func (s *Server) Nack(name string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, nacks: true}, nil)
}

// Silence keeps back the confirms of messages published to an exchange, or that
// come to a queue. The messages themselves arrive. Undoing it sends the confirms.
func (s *Server) Silence(name string) (undo func()) {
	f := &fault{name: name, silent: true}
	return add(s, &s.faults.named, f, func() {
		for _, tell := range f.held {
			tell()
		}
		f.held = nil
	})
}

// Deny takes a permission away from a user, or with an empty name from all, for
// what matches the pattern. It panics if that is no regular expression.
func (s *Server) Deny(user string, p Permission, pattern string) (undo func()) {
	return add(s, &s.faults.denied, &denial{user, p, regexp.MustCompile(pattern)}, nil)
}

// Block raises an alarm, as of memory or disk: connections that publish are told
// the reason and are not read any more until Unblock. Others are not touched.
func (s *Server) Block(reason string) (undo func()) {
	s.do(func() {
		s.faults.alarm = reason
		for c := range s.conns {
			c.block()
		}
	})
	return s.Unblock
}

// Unblock ends the alarm.
func (s *Server) Unblock() {
	s.do(func() {
		s.faults.alarm = ""
		for c := range s.conns {
			able, _ := c.able["connection.blocked"].(bool)
			if able && c.blocked {
				c.send(0, connectionUnblocked, "", nil)
			}
			c.blocked = false
		}
		s.unblocked.Broadcast()
	})
}

// CutConnections ends all connections without a word.
func (s *Server) CutConnections() {
	s.do(func() {
		for c := range s.conns {
			c.end()
		}
	})
}

// CloseConnections closes all connections as an operator does, with 320
// CONNECTION_FORCED and a text.
func (s *Server) CloseConnections(text string) {
	s.do(func() {
		for c := range s.conns {
			c.fail(rabbit.Refusal(320, "%s", text), 0)
		}
	})
}

// RefuseConnections makes Dial fail as if nothing listened.
func (s *Server) RefuseConnections() (undo func()) { return s.count(&s.faults.refuseDials) }

// RefuseLogins answers every login with 403, as a broker with another password
// does, and one that has just started.
func (s *Server) RefuseLogins() (undo func()) { return s.count(&s.faults.refuseLogins) }

func (s *Server) count(n *int) (undo func()) {
	s.do(func() { *n++ })
	done := false
	return func() {
		s.do(func() {
			if !done {
				done = true
				*n--
			}
		})
	}
}

// Frame is a method between a client and the server, with the message that belongs
// to it.
type Frame struct {
	Connection string // the client's connection_name
	Channel    uint16 // 0 for methods of the connection
	FromClient bool
	Method     string // e.g. "basic.publish", "queue.declare-ok"
	// Name is the queue or exchange that the method is about: what is declared,
	// consumed from, published to (the routing key for the default exchange), and
	// for a binding its destination. Confirms have that of their message.
	Name string
}

// Action decides about a Frame. The zero Action lets it pass.
type Action struct {
	// Drop loses it: what comes from a client has no effect, what goes to one does
	// not arrive.
	Drop bool
	// Cut cuts the connection after it, or with Drop instead of it.
	Cut bool
	// Delay is for frames from clients: the server begins with it, and with what
	// comes behind it on its channel, only after that time.
	Delay time.Duration

	refusal *rabbit.Error // of a client's method on a channel
}

// Control calls decide for each method in either direction. The latest Control
// is asked first, until one returns an Action that is not zero. decide is
// called by one goroutine at a time and must not call the Server.
func (s *Server) Control(decide func(Frame) Action) (undo func()) {
	return add(s, &s.faults.controls, &control{decide}, nil)
}

// act asks the controls about a frame, the latest first.
func (f *faults) act(c *conn, fr Frame) Action {
	if c.closing && fr.FromClient {
		return Action{}
	}
	for _, x := range slices.Backward(f.controls) {
		if a := x.decide(fr); a != (Action{}) {
			return a
		}
	}
	return Action{}
}

// CutAt cuts the connection on which the n-th frame of a method passes, from 1
// on, before it has an effect or arrives: CutAt("basic.ack", 1) loses the first
// confirm although the message is safe.
func (s *Server) CutAt(method string, n int) (undo func()) {
	return s.Control(func(f Frame) Action {
		if f.Method != method {
			return Action{}
		}
		n--
		return Action{Drop: n == 0, Cut: n == 0}
	})
}

// Lose drops all frames of a method about a name, or with an empty name about
// any: with Lose("queue.declare", "q") declarations of q have neither an effect
// nor an answer; with Lose("queue.declare-ok", "q") they have their effect but
// no answer.
func (s *Server) Lose(method, name string) (undo func()) {
	return s.Control(func(f Frame) Action {
		return Action{Drop: f.Method == method && (name == "" || f.Name == name)}
	})
}

// Delay delays a client's method about a name, or with an empty name about any.
func (s *Server) Delay(method, name string, d time.Duration) (undo func()) {
	return s.Control(func(f Frame) Action {
		if f.FromClient && f.Method == method && (name == "" || f.Name == name) {
			return Action{Delay: d}
		}
		return Action{}
	})
}

// arriving returns the Frame of a method from a client.
func arriving(c *conn, f codec.Frame) Frame {
	m, d := readMethod(f.Payload)
	fr := Frame{Connection: c.name, Channel: f.Channel, FromClient: true, Method: m.String()}
	switch m {
	case exchangeDeclare, exchangeDelete, exchangeBind, exchangeUnbind, queueDeclare, queueDelete, queuePurge,
		queueBind, queueUnbind, basicConsume, basicGet:
		d.Short()
		fr.Name = d.ShortStr()
	case basicPublish:
		d.Short()
		if fr.Name = d.ShortStr(); fr.Name == "" {
			fr.Name = d.ShortStr()
		}
	}
	return fr
}
