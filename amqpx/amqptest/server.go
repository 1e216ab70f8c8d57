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
	DefaultChannelMax      = 2047
	DefaultFrameMax        = 128 << 10
	DefaultConsumerTimeout = 30 * time.Minute
)

// Options of a Server. The zero value is a RabbitMQ 4.3.0 with the user guest,
// whose password is guest, and the virtual host "/".
type Options struct {
	// Version of RabbitMQ whose behaviour is wanted, from 3.10 on, e.g. "3.10.8",
	// "4.0.5". Default 4.3.0.
	Version string
	// Plugin enables the plugin rabbitmq_delayed_message_exchange.
	Plugin bool
	// Users who may connect. Default guest with the password guest and all rights.
	Users []User
	// VHosts are the virtual hosts besides "/".
	VHosts []string
	// DefaultQueueType of queues that are declared without x-queue-type: classic
	// (the default) or quorum.
	DefaultQueueType string
	// MaxMessageSize is the largest body, in bytes. Default 16 MiB, and 128 MiB
	// before 4.0.
	MaxMessageSize int
	// FrameMax is the largest frame in bytes, default 128 KiB, at least 8 KiB.
	FrameMax int
	// ChannelMax is how many channels a connection may have, default 2047.
	ChannelMax int
	// Heartbeat is what the server proposes and URL carries, whole seconds up
	// to 65535 s. Default none: a year in a bubble would have millions of
	// heartbeats, and they would keep a deadlocked bubble running instead of
	// failing.
	Heartbeat time.Duration
	// ConsumerTimeout is how long a delivery may wait for its acknowledgement
	// before the channel is closed. Default 30 min; negative for no bound. Since
	// 4.3 it is about quorum queues only, and ends the consumer instead of the channel.
	ConsumerTimeout time.Duration
	// Latency is how long bytes of a connection in memory take, one way: half a
	// round trip. Connections over a socket do not have it.
	Latency time.Duration
	// LateBindings is how long a new binding of a topic exchange takes until it
	// has an effect and is answered. The same binding from another client is
	// meanwhile answered at once. RabbitMQ 3.12 to 4.2 on Mnesia does so for
	// some milliseconds.
	LateBindings time.Duration
	// ClockAhead is how much the server's clock is ahead of this process's, negative
	// for behind.
	ClockAhead time.Duration
}

// User is a user who may connect. The patterns are regular expressions about
// names of queues and exchanges, as RabbitMQ has them: ".*" allows all, ""
// nothing. The default exchange is called amq.default.
type User struct {
	Name, Password         string
	Configure, Write, Read string
	// VHosts that the user may use, default all.
	VHosts []string
}

// Server is a RabbitMQ in memory. All methods may be called by many goroutines.
type Server struct {
	opts     Options
	users    map[string]*user
	handlers map[method]handler

	mu        sync.Mutex
	unblocked sync.Cond // signalled when a connection may be read again, or ends
	broker    *rabbit.Broker
	timer     *time.Timer // for what the broker does next
	conns     map[*conn]struct{}
	number    int // of connections ever made
	listeners []net.Listener
	closed    bool
	running   sync.WaitGroup

	faults    faults
	published map[string]int // messages by exchange
	calls     map[method]int // methods of clients
}

// NewServer starts a server. Inside a testing/synctest bubble it belongs to the
// bubble, as does everything that it starts, and has to be closed there.
//
// It panics if an option is invalid.
func NewServer(opts Options) *Server {
	opts.Version = cmp.Or(opts.Version, DefaultVersion)
	opts.FrameMax = cmp.Or(opts.FrameMax, DefaultFrameMax)
	opts.ChannelMax = cmp.Or(opts.ChannelMax, DefaultChannelMax)
	opts.ConsumerTimeout = cmp.Or(opts.ConsumerTimeout, DefaultConsumerTimeout)
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

// do calls f with the server locked, after everything that is due, and then sets the
// timer for what comes next.
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

// until returns the time until an instant of the server's clock.
func (s *Server) until(at time.Time) time.Duration { return time.Until(at) - s.opts.ClockAhead }

// Close cuts all connections, as if the broker were killed, and waits for the
// goroutines of the server.
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

// host is the host of URL; nothing resolves it.
const host = "amqptest:5672"

// URL returns the URL for a client that connects by Dial as the first user. It has
// Options.Heartbeat.
func (s *Server) URL() string { return s.URLAs(s.opts.Users[0].Name) }

// URLAs returns the URL for another user.
func (s *Server) URLAs(name string) string { return s.url(name, host) }

func (s *Server) url(name, addr string) string {
	u := url.URL{Scheme: "amqp", User: url.User(name), Host: addr, Path: "/"}
	if have := s.users[name]; have != nil {
		u.User = url.UserPassword(name, have.Password)
	}
	u.RawQuery = "heartbeat=" + strconv.Itoa(int(s.opts.Heartbeat/time.Second))
	return u.String()
}

// Dial connects in memory, whatever the address. Use it as amqpx.Config.Dial.
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

// Connect returns a connection of amqp091-go in memory, as the first user: one of a program that does not use
// rabbitdelay. To look into queues, as inspect.Peek and packages status and trace do, open one by inspect.Dial with
// Config.URL and Config.Dial of this server.
func (s *Server) Connect() (*amqp.Connection, error) {
	return amqp.DialConfig(s.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		return s.Dial(context.Background(), network, addr)
	}})
}

// Listen also serves a socket on 127.0.0.1, for clients in other processes, and returns
// its URL. Sockets do not work inside a testing/synctest bubble.
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

// listen joins each socket to a connection in memory, so that the server never
// waits for a client that does not read.
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
		// Copy both ways until one side ends. Bytes that the server has already written still
		// reach the socket.
		s.running.Go(func() {
			_, _ = io.Copy(mem, socket) // the end of either side is the end of both
			_ = mem.Close()
		})
		s.running.Go(func() {
			_, _ = io.Copy(socket, mem)
			_ = socket.Close()
		})
	}
}
