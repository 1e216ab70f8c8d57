package amqpx_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// cluster consists of several in-memory brokers, which a client treats as the nodes of one cluster.
type cluster struct {
	nodes map[string]*amqptest.Server // brokers by address
	urls  []string

	mu    sync.Mutex
	dials []string // addresses, in order
}

// inCluster runs a test with brokers at one:5672 and two:5672.
func inCluster(t *testing.T, test func(t *testing.T, k *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &cluster{nodes: map[string]*amqptest.Server{}}
		for _, name := range []string{"one", "two"} {
			srv := amqptest.NewServer(amqptest.Options{})
			t.Cleanup(srv.Close)
			k.nodes[name+":5672"] = srv
			k.urls = append(k.urls, strings.Replace(srv.URL(), "amqptest", name, 1))
		}
		test(t, k)
	})
}

func (k *cluster) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	k.mu.Lock()
	k.dials = append(k.dials, addr)
	k.mu.Unlock()
	return k.nodes[addr].Dial(ctx, network, addr)
}

func TestNodesInARandomOrder(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		first := map[string]int{}
		for range 64 {
			conn, err := inspect.Dial(t.Context(), amqpx.Config{URLs: k.urls, Dial: k.dial})
			if err != nil {
				t.Fatal(err)
			}
			first[k.dials[len(k.dials)-1]]++
			_ = conn.Close()
		}
		if len(first) != 2 {
			t.Errorf("64 connections were opened to the nodes %v, want both nodes", first)
		}
	})
}

// After Open, Stats shows that the client is connected.
func TestStatsOfAnOpenedClient(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		for range 100 {
			c, err := amqpx.Open(t.Context(), amqpx.Config{URLs: k.urls, Dial: k.dial})
			if err != nil {
				t.Fatal(err)
			}
			if s := c.Stats().Publish; s.State != amqpx.StateConnected || s.Address == "" {
				t.Errorf("after Open: got the state %q and the address %q, want connected and an address", s.State, s.Address)
			}
			_ = c.Close(t.Context())
		}
	})
}

// A client that has lost its broker connects to another one, and stays there.
func TestReconnectTriesTheOthers(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: k.urls[0], URLs: k.urls[1:], Dial: k.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(t.Context()) }()
		for range 4 {
			at := c.Stats().Publish.Address
			k.nodes[at].CutConnections()
			after(10 * time.Second)
			if now := c.Stats().Publish.Address; now == at || now == "" {
				t.Fatalf("after the loss of %s, the client is connected to %q, want another node", at, now)
			}
		}
	})
}

// If no broker accepts the connection, the error lists each broker with its reason. The error is final only if the
// reasons of all brokers are.
func TestNoNodeAnswers(t *testing.T) {
	inCluster(t, func(t *testing.T, k *cluster) {
		k.nodes["one:5672"].RefuseConnections()
		undo := k.nodes["two:5672"].RefuseLogins()
		cfg := amqpx.Config{URLs: k.urls, Dial: k.dial}
		began := time.Now()
		for _, open := range []func() error{
			func() error { _, err := amqpx.Open(t.Context(), cfg); return err },
			func() error { _, err := inspect.Dial(t.Context(), cfg); return err },
		} {
			err := open()
			text := err.Error()
			for _, want := range []string{"one:5672: connection refused", `two:5672: the broker refused the user "guest"`} {
				if !strings.Contains(text, want) {
					t.Errorf("connecting to two nodes: got %s, want an error with %q", text, want)
				}
			}
			if strings.Contains(text, "guest:guest") {
				t.Errorf("connecting to two nodes: got %s, want no password in the error", text)
			}
			if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != amqp.AccessRefused {
				t.Errorf("connecting to two nodes: got %v, want an error that wraps an *amqp.Error with code 403", err)
			}
		}
		if took := time.Since(began); took < 30*time.Second {
			t.Errorf("Open and Dial gave up after %v in total, want at least 30s, because one broker may recover", took)
		}
		undo()
		c, err := amqpx.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		began = time.Now()
		for _, srv := range k.nodes {
			srv.RefuseLogins()
		}
		k.nodes["one:5672"] = k.nodes["two:5672"] // the broker at one:5672 no longer refuses connections
		if _, err := amqpx.Open(t.Context(), cfg); err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("Open returned %v after %v, want a final refusal within 10s", err, time.Since(began))
		}
	})
}

// credentials is the result of Config.Login.
type credentials struct {
	user, password string
	err            error
}

// Login is called for each new connection, including those for declarations, so that passwords can change.
func TestLogin(t *testing.T) {
	opts := amqptest.Options{Users: []amqptest.User{
		{Name: "old", Password: "first", Configure: ".*", Write: ".*", Read: ".*"},
		{Name: "new", Password: "second", Configure: ".*", Write: ".*", Read: ".*"},
	}}
	inMemoryOf(t, opts, func(t *testing.T, m *memory) {
		var now atomic.Pointer[credentials]
		now.Store(&credentials{"old", "first", nil})
		c := m.open(amqpx.Config{URL: "amqp://nobody:nothing@amqptest", Login: func(context.Context) (string, string, error) {
			k := now.Load()
			return k.user, k.password, k.err
		}})
		c.mustSend(amqpx.Message{Queue: "q"})
		now.Store(&credentials{err: errors.New("the vault is sealed")})
		m.CutConnections()
		after(time.Minute)
		if err := c.Health(); err == nil || !strings.Contains(err.Error(), "the vault is sealed") {
			t.Errorf(`Health: got %v, want an error with "the vault is sealed"`, err)
		}
		now.Store(&credentials{"new", "second", nil})
		after(time.Minute)
		c.mustSend(amqpx.Message{Queue: "other"})
		var users []string
		for _, conn := range m.Connections() {
			users = append(users, conn.User)
		}
		if slices.Contains(users, "old") || len(users) != 2 {
			t.Errorf(`the connections belong to the users %q, want two users and none of them "old"`, users)
		}
		if _, err := amqpx.Open(t.Context(), amqpx.Config{URL: m.URL(), Dial: m.Dial, Login: func(context.Context) (string, string, error) {
			return "new", "wrong", nil
		}}); err == nil || !strings.Contains(err.Error(), `refused the user "new"`) || strings.Contains(err.Error(), "wrong") {
			t.Errorf(`Open with a wrong login: got %v, want an error with 'refused the user "new"' and without the password`, err)
		}
	})
}
