package amqptest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
)

// Defaults of Options.
const (
	DefaultVersion         = "4.3.0"
	defaultChannelMax      = 2047
	defaultFrameMax        = 128 << 10
	defaultConsumerTimeout = 30 * time.Minute
)

// Options configures a Server. The zero value is a RabbitMQ 4.3.0 with the user guest, whose password is guest, and the
// virtual host "/".
type Options struct {
	// Version is the RabbitMQ version to simulate, such as "3.10.8" or "4.0.5". It must be 3.10 or later. Default
	// 4.3.0.
	Version string
	// Plugin enables the plugin rabbitmq_delayed_message_exchange.
	Plugin bool
	// Users lists the users that may connect. Default: guest with the password guest and all permissions.
	Users []User
	// VHosts lists virtual hosts in addition to "/".
	VHosts []string
	// DefaultQueueType is the type of queues that are declared without x-queue-type: classic (the default) or quorum.
	DefaultQueueType string
	// MaxMessageSize is the maximum size of a message body in bytes. Default 16 MiB, or 128 MiB before 4.0.
	MaxMessageSize int
	// FrameMax is the maximum frame size in bytes, at least 8 KiB. Default 128 KiB.
	FrameMax int
	// ChannelMax is the maximum number of channels per connection. Default 2047.
	ChannelMax int
	// Heartbeat is the interval that the server proposes and that URL includes, in whole seconds up to 65535 s. The
	// default is no heartbeats, because a simulated year would need millions of them, and because they would keep a
	// deadlocked synctest bubble running instead of letting it fail.
	Heartbeat time.Duration
	// ConsumerTimeout is how long a delivery may stay unacknowledged before the server closes the channel. Default 30
	// min. A negative value disables the timeout. Since 4.3 the timeout applies only to quorum queues, and the server
	// cancels the consumer instead of closing the channel.
	ConsumerTimeout time.Duration
	// Latency is the one-way latency of an in-memory connection, which is half a round trip. Default 0. It does not
	// apply to socket connections.
	Latency time.Duration
	// LateBindings is how long a new binding of a topic exchange takes until it has an effect and the server confirms
	// it. If another client declares the same binding during this time, the server confirms that declaration
	// immediately. RabbitMQ 3.12 to 4.2 on Mnesia behaves like this for a few milliseconds. Default 0.
	LateBindings time.Duration
	// ClockAhead is how far the server's clock is ahead of this process's clock. It is negative if the server's clock
	// is behind. Default 0.
	ClockAhead time.Duration
}

// User is a user that may connect. As in RabbitMQ, the permissions are regular expressions for names of queues and
// exchanges: ".*" allows everything and "" allows nothing. They match the default exchange by the name amq.default.
type User struct {
	Name, Password         string
	Configure, Write, Read string
	// VHosts lists the virtual hosts that the user may access. Default all.
	VHosts []string
}

// Server is an in-memory RabbitMQ broker. It is safe for concurrent use. The zero value is not usable; use NewServer.
type Server struct {
	opts     Options
	users    map[string]*user
	handlers map[method]handler

	mu        sync.Mutex
	unblocked sync.Cond // signalled when a connection may be read again, or is closed
	broker    *rabbit.Broker
	timer     *time.Timer // fires at the broker's next event
	conns     map[*conn]struct{}
	number    int // number of connections made so far
	listeners []net.Listener
	closed    bool
	running   sync.WaitGroup

	faults    faults
	published map[string]int // number of messages published to each exchange
	calls     map[method]int // number of times that clients have sent each method
}

// NewServer starts a server. If it is called inside a testing/synctest bubble, the server and everything that it starts
// belong to the bubble, and the server must be closed in the bubble.
//
// NewServer panics if Version cannot be parsed or a user's permission is not a regular expression. It does not check
// the other options.
func NewServer(opts Options) *Server {
	opts.Version = cmp.Or(opts.Version, DefaultVersion)
	opts.FrameMax = cmp.Or(opts.FrameMax, defaultFrameMax)
	opts.ChannelMax = cmp.Or(opts.ChannelMax, defaultChannelMax)
	opts.ConsumerTimeout = cmp.Or(opts.ConsumerTimeout, defaultConsumerTimeout)
	if opts.Users == nil {
		opts.Users = []User{{Name: "guest", Password: "guest", Configure: ".*", Write: ".*", Read: ".*"}}
	}
	v, err := rabbit.ParseVersion(opts.Version)
	if err != nil {
		panic("amqptest: " + err.Error())
	}
	opts.Version = v.String()
	if opts.MaxMessageSize == 0 {
		opts.MaxMessageSize = 128 << 20
		if v.AtLeast(4, 0, 0) {
			opts.MaxMessageSize = 16 << 20
		}
	}
	s := &Server{
		opts: opts, handlers: handlers(), users: map[string]*user{}, conns: map[*conn]struct{}{},
		published: map[string]int{}, calls: map[method]int{},
		broker: rabbit.New(rabbit.Options{
			Version: v, Plugin: opts.Plugin, DefaultQueueType: opts.DefaultQueueType, LateBindings: opts.LateBindings,
		}, time.Now().Add(opts.ClockAhead)),
	}
	s.unblocked.L = &s.mu
	for _, u := range opts.Users {
		s.users[u.Name] = &user{u, map[Permission]func(string) bool{
			PermissionConfigure: pattern(u.Configure), PermissionWrite: pattern(u.Write), PermissionRead: pattern(u.Read),
		}}
	}
	for _, name := range opts.VHosts {
		s.broker.AddVHost(name)
	}
	s.timer = time.AfterFunc(time.Hour, func() { s.do(func() {}) })
	return s
}

// do locks the server, runs all events that are due, calls f, and sets the timer for the next event. It does not call f
// if the server is closed.
func (s *Server) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.advance()
	f()
	if at, ok := s.broker.Next(); ok && !s.closed {
		s.timer.Reset(s.until(at))
	}
}

func (s *Server) advance() { s.broker.Advance(time.Now().Add(s.opts.ClockAhead)) }

// until returns the duration until the given time on the server's clock.
func (s *Server) until(at time.Time) time.Duration { return time.Until(at) - s.opts.ClockAhead }

// Close cuts all connections, as if the broker were killed, and waits for the server's goroutines to exit.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.timer.Stop()
		for c := range s.conns {
			c.end()
		}
		for _, l := range s.listeners {
			_ = l.Close()
		}
		s.unblocked.Broadcast()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// host is the address in URL. The name is never resolved.
const host = "amqptest:5672"

// URL returns the URL for a client that connects through Dial as the first user. The URL includes Options.Heartbeat.
func (s *Server) URL() string { return s.URLAs(s.opts.Users[0].Name) }

// URLAs returns the URL for a client that connects through Dial as the user with the given name.
func (s *Server) URLAs(name string) string { return s.url(name, host) }

func (s *Server) url(name, addr string) string {
	u := url.URL{Scheme: "amqp", User: url.User(name), Host: addr, Path: "/"}
	if have := s.users[name]; have != nil {
		u.User = url.UserPassword(name, have.Password)
	}
	u.RawQuery = "heartbeat=" + strconv.Itoa(int(s.opts.Heartbeat/time.Second))
	return u.String()
}

// Dial returns an in-memory connection to the server, regardless of the address. Use it as amqpx.Config.Dial.
func (s *Server) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.faults.refuseDials > 0 {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: pipeAddr(addr), Err: syscall.ECONNREFUSED}
	}
	s.number++
	client, server := pipes(fmt.Sprintf("client-%d", s.number), host, s.opts.Latency)
	c := newConn(s, server, s.number)
	s.conns[c] = struct{}{}
	s.running.Go(c.serve)
	return client, nil
}

// Connect returns an in-memory amqp091-go connection as the first user. Use it to simulate a program that does not use
// rabbitdelay. To inspect queues with package inspect, open a connection with inspect.Dial instead, and pass it this
// server's URL and Dial.
func (s *Server) Connect() (*amqp.Connection, error) {
	return amqp.DialConfig(s.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		return s.Dial(context.Background(), network, addr)
	}})
}

// Listen makes the server also accept clients from other processes on a socket on 127.0.0.1, and returns the URL of the
// socket. It may be called several times. Sockets do not work inside a testing/synctest bubble.
func (s *Server) Listen() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", errors.New("amqptest: the server is closed")
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("amqptest: %w", err)
	}
	s.listeners = append(s.listeners, l)
	s.running.Go(func() { s.listen(l) })
	return s.url(s.opts.Users[0].Name, l.Addr().String()), nil
}

// listen connects each socket to an in-memory connection, so the server never waits for a client that does not read.
func (s *Server) listen(l net.Listener) {
	for {
		socket, err := l.Accept()
		if err != nil {
			return
		}
		mem, err := s.Dial(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			_ = socket.Close()
			continue
		}
		// Copy in both directions until one side is closed. Bytes that the server has already written still reach the
		// socket.
		s.running.Go(func() {
			_, _ = io.Copy(mem, socket) // when either side is closed, close both
			_ = mem.Close()
		})
		s.running.Go(func() {
			_, _ = io.Copy(socket, mem)
			_ = socket.Close()
		})
	}
}
