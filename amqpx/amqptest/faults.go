package amqptest

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// faults is the set of faults in effect.
type faults struct {
	named        []*fault
	denied       []*denial
	controls     []*control
	alarm        string // why publishers are blocked; empty without an alarm
	refuseDials  int
	refuseLogins int
}

// fault describes the faults that were injected for one exchange or queue by one call.
type fault struct {
	name           string
	refusal        *rabbit.Error
	returns, nacks bool
	silent         bool
	held           []func() // confirms that Silence holds back
}

type denial struct {
	user       string
	permission Permission
	pattern    *regexp.Regexp
}

type control struct{ decide func(Frame) Action }

// refusal returns the injected error for a request that declares, binds or reads from the named exchange or queue, or
// nil.
func (f *faults) refusal(name string) *rabbit.Error {
	for _, x := range f.named {
		if x.refusal != nil && x.name == name {
			return x.refusal
		}
	}
	return nil
}

// effect combines the faults of a message's exchange and queues.
type effect struct {
	refusal        *rabbit.Error
	returns, nacks bool
	silent         *fault
}

// of returns the combined effect of all faults that were injected for the given exchanges and queues.
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

// add appends x to a list of faults. It returns a function that removes x and then calls after, if after is not nil.
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

// Refuse makes the server reject every attempt to publish to an exchange or queue, to declare it, to bind it or to
// consume from it. The server closes the channel with the code and text, or the connection for codes that require that
// (530, 541 and others). It prefixes the text with the name of the code, so Refuse("q", 404, "no queue 'q'") results in
// "NOT_FOUND - no queue 'q'". Call undo to remove the fault.
func (s *Server) Refuse(name string, code int, text string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, refusal: rabbit.Refusal(code, "%s", text)}, nil)
}

// RefuseMethod makes the server reject one client method for a queue or exchange in the same way as Refuse, and leaves
// all other methods alone. For example, RefuseMethod("basic.consume", "q", 541, "…") simulates a queue that can be
// declared although its process has crashed. An empty name matches every queue and exchange.
func (s *Server) RefuseMethod(method, name string, code int, text string) (undo func()) {
	refusal := rabbit.Refusal(code, "%s", text)
	return s.Control(func(f Frame) Action {
		if f.FromClient && f.Method == method && (name == "" || f.Name == name) {
			return Action{refusal: refusal}
		}
		return Action{}
	})
}

// Return makes the server return all mandatory messages for an exchange or a queue as unroutable, and drop all other
// messages for it.
func (s *Server) Return(name string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, returns: true}, nil)
}

// Nack makes the server answer messages for an exchange or a queue with basic.nack and drop them.
func (s *Server) Nack(name string) (undo func()) {
	return add(s, &s.faults.named, &fault{name: name, nacks: true}, nil)
}

// Silence holds back the confirms of messages that are published to an exchange or routed to a queue. The messages
// themselves arrive. The undo function sends the confirms.
func (s *Server) Silence(name string) (undo func()) {
	f := &fault{name: name, silent: true}
	return add(s, &s.faults.named, f, func() {
		for _, tell := range f.held {
			tell()
		}
		f.held = nil
	})
}

// Deny removes a user's permission for all names that match the pattern. With an empty user, it removes the permission
// from all users. It panics if the pattern is not a valid regular expression.
func (s *Server) Deny(user string, p Permission, pattern string) (undo func()) {
	return add(s, &s.faults.denied, &denial{user, p, regexp.MustCompile(pattern)}, nil)
}

// Block raises an alarm, like one for memory or disk. The server sends the reason to connections that publish, and
// stops reading from them until Unblock is called. It does not affect other connections.
func (s *Server) Block(reason string) (undo func()) {
	s.do(func() {
		s.faults.alarm = reason
		for c := range s.conns {
			c.block()
		}
	})
	return s.Unblock
}

// Unblock clears the alarm.
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

// CutConnections drops all connections without the closing handshake.
func (s *Server) CutConnections() {
	s.do(func() {
		for c := range s.conns {
			c.end()
		}
	})
}

// CloseConnections closes all connections with 320 CONNECTION_FORCED and the given text, as an operator can do.
func (s *Server) CloseConnections(text string) {
	s.do(func() {
		for c := range s.conns {
			c.fail(rabbit.Refusal(320, "%s", text), 0)
		}
	})
}

// RefuseConnections makes Dial fail with "connection refused".
func (s *Server) RefuseConnections() (undo func()) { return s.count(&s.faults.refuseDials) }

// RefuseLogins rejects every login with 403. A broker does this if the password is wrong, or for a moment after it has
// started.
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

// Frame is a method that is sent between a client and the server, including the message that belongs to it.
type Frame struct {
	Connection string // the client's connection_name
	Channel    uint16 // 0 for methods of the connection
	FromClient bool
	Method     string // e.g. "basic.publish", "queue.declare-ok"
	// Name is the queue or exchange that the method concerns. This is the object that is declared, consumed from or
	// published to (for the default exchange, the routing key), or the destination of a binding. For a confirm it is
	// the Name of the basic.publish that is confirmed.
	Name string
}

// Action says what to do with a Frame. The zero Action lets it pass.
type Action struct {
	// Drop discards the frame. A client's frame has no effect, and a server's frame does not arrive.
	Drop bool
	// Cut cuts the connection after the frame. Together with Drop, it cuts the connection instead of passing the frame.
	Cut bool
	// Delay postpones a client's frame by the given time, together with all later frames on the same channel. It has no
	// effect on frames from the server.
	Delay time.Duration

	refusal *rabbit.Error // refuses a client's method with this error; set by RefuseMethod
}

// Control lets a test decide what happens to each method in either direction, for faults that the other functions do
// not offer. If there are several controls, the server calls the latest one first and stops at the first Action that is
// not zero. The function decide is called by one goroutine at a time and must not call methods of the Server.
func (s *Server) Control(decide func(Frame) Action) (undo func()) {
	return add(s, &s.faults.controls, &control{decide}, nil)
}

// act returns the action of the controls for a frame. It calls the latest control first.
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

// CutAt cuts the connection when the n-th frame of a method passes, counted from 1, before the frame has an effect or
// arrives. For example, if the clients only publish, CutAt("basic.ack", 1) loses the first confirm although the broker
// has stored the message.
func (s *Server) CutAt(method string, n int) (undo func()) {
	return s.Control(func(f Frame) Action {
		if f.Method != method {
			return Action{}
		}
		n--
		return Action{Drop: n == 0, Cut: n == 0}
	})
}

// Lose drops all frames of a method that concern the named queue or exchange, or all frames of the method if the name
// is empty. With Lose("queue.declare", "q"), declarations of q have no effect and get no answer. With
// Lose("queue.declare-ok", "q"), they take effect but get no answer.
func (s *Server) Lose(method, name string) (undo func()) {
	return s.Control(func(f Frame) Action {
		return Action{Drop: f.Method == method && (name == "" || f.Name == name)}
	})
}

// Delay delays all frames of a client method that concern the named queue or exchange, or all frames of the method if
// the name is empty.
func (s *Server) Delay(method, name string, d time.Duration) (undo func()) {
	return s.Control(func(f Frame) Action {
		if f.FromClient && f.Method == method && (name == "" || f.Name == name) {
			return Action{Delay: d}
		}
		return Action{}
	})
}

// arriving describes a client's method as a Frame.
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
