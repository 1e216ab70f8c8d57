package amqptest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
)

// QueueState is a snapshot of a queue.
type QueueState struct {
	Name      string
	Type      string // classic or quorum
	Durable   bool
	Arguments amqp.Table
	Ready     int
	Unacked   int
	Consumers int
	// Delayed is the number of messages that wait for the time in their header x-opt-delivery-time, from RabbitMQ 4.4
	// on.
	Delayed int
	// DeadLetters is the number of dead letters of an at-least-once queue that could not be routed yet.
	DeadLetters int
	// Messages lists the ready messages in delivery order.
	Messages []Message
}

// Message is a message in a queue, as a consumer would receive it.
type Message struct {
	amqp.Publishing
	Exchange   string
	RoutingKey string
	Expires    time.Time // zero if the message does not expire
}

// Queue returns the state of a queue in the virtual host "/". It returns false if the queue does not exist.
func (s *Server) Queue(name string) (state QueueState, ok bool) { return s.QueueIn("/", name) }

// QueueIn returns the state of a queue in a virtual host. It returns false if the queue or the virtual host does not
// exist.
func (s *Server) QueueIn(vhost, name string) (state QueueState, ok bool) {
	s.do(func() {
		if v := s.broker.VHost(vhost); v != nil {
			if q := v.Queue(name); q != nil {
				state, ok = QueueState{
					Name: q.Name, Type: "classic", Durable: q.Durable, Arguments: q.Args,
					Ready: q.Ready(), Unacked: q.Unacked(), Consumers: q.Consumers(), Delayed: q.Delayed(), DeadLetters: q.Dying(),
				}, true
				if q.Quorum() {
					state.Type = "quorum"
				}
				for _, m := range q.Messages() {
					state.Messages = append(state.Messages, s.seen(m))
				}
			}
		}
	})
	return state, ok
}

// seen returns a message as a consumer would receive it.
func (s *Server) seen(m *rabbit.Message) Message {
	p := m.Publishing
	p.Headers = m.Delivered(s.broker.Version())
	return Message{p, m.Exchange, m.RoutingKey(), m.Expires()}
}

// Queues returns the names of all queues in the virtual host "/", sorted.
func (s *Server) Queues() (names []string) {
	s.do(func() { names = s.broker.VHost("/").QueueNames() })
	return names
}

// Exchange is a snapshot of an exchange.
type Exchange struct {
	Name, Type                    string
	Durable, AutoDelete, Internal bool
	Arguments                     amqp.Table
}

// Exchanges returns the exchanges in the virtual host "/" that clients have declared, ordered by name.
func (s *Server) Exchanges() (all []Exchange) {
	s.do(func() {
		v := s.broker.VHost("/")
		for _, name := range v.ExchangeNames() {
			if e := v.Exchange(name); name != "" && !strings.HasPrefix(name, "amq.") {
				all = append(all, Exchange{e.Name, e.Kind, e.Durable, e.AutoDelete, e.Internal, e.Args})
			}
		}
	})
	return all
}

// Binding is a binding from an exchange to a queue or another exchange.
type Binding struct {
	Exchange   string
	Queue      string // exactly one of Queue and ToExchange is set
	ToExchange string
	RoutingKey string
	Arguments  amqp.Table
}

// Bindings returns the bindings from an exchange in the virtual host "/", oldest first.
func (s *Server) Bindings(exchange string) (all []Binding) {
	s.do(func() {
		if e := s.broker.VHost("/").Exchange(exchange); e != nil {
			for _, b := range e.Bindings() {
				all = append(all, Binding{b.Source, b.Queue, b.ToExchange, b.Key, b.Args})
			}
		}
	})
	return all
}

// ConnectionState is a snapshot of a connection.
type ConnectionState struct {
	Name, User, VHost string
	Channels          int // currently open channels
	ChannelsOpened    int // number of channels opened so far
	Consumers         int
	Unacked           int
	Blocked           bool
}

// Connections returns the open connections, oldest first.
func (s *Server) Connections() (all []ConnectionState) {
	s.do(func() {
		var open []*conn
		for c := range s.conns {
			if c.open {
				open = append(open, c)
			}
		}
		slices.SortFunc(open, func(a, b *conn) int { return cmp.Compare(a.number, b.number) })
		for _, c := range open {
			st := ConnectionState{
				Name: c.name, User: c.user.Name, VHost: c.vhostName,
				Channels: len(c.channels), ChannelsOpened: c.opened, Blocked: c.blocked,
			}
			for _, ch := range c.channels {
				st.Consumers += ch.deliveries.Consuming()
				st.Unacked += ch.deliveries.Holds()
			}
			all = append(all, st)
		}
	})
	return all
}

// Publishes returns how many messages clients have published to an exchange, including messages that were returned or
// nacked, or that a fault refused. Messages that the broker's own rules refuse, for example because of their size, do
// not count.
func (s *Server) Publishes(exchange string) (n int) {
	s.do(func() { n = s.published[exchange] })
	return n
}

// Calls returns how many times clients have sent a method, such as "queue.declare".
func (s *Server) Calls(method string) (n int) {
	s.do(func() {
		for m, k := range s.calls {
			if m.String() == method {
				n += k
			}
		}
	})
	return n
}
