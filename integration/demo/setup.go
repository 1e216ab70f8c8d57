// Package demo runs two stories with the SDK, on a real broker and a real database. orders.go and posts.go contain code
// like that of an application. setup.go prepares the broker, the database and the console. ledger.go compares the
// actions in the stories with their results.
package demo

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"    // mysql://
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"   // sqlite:
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Options set the size of each story. A story of size 0 is omitted.
type Options struct {
	Orders, Posts int
	Hold          bool // keep the console open after the stories
	Verbose       bool // show why there is no container
}

// stage has the broker, the database and the clients that the stories use.
type stage struct {
	*program.Program
	Options
	name              string // the name of this run
	cfg               *config.Config
	broker            *broker.Broker
	strategy, version string // the names that the broker reports
	db                *sql.DB
	dbURL             config.URL
	dialect           idempotency.Dialect
	clients           [2]*amqpx.Client // each client represents a process
	tasks             *schedule.Store
	orders            *orders
	posts             *posts
	undo              []func(context.Context) error

	sent, handled atomic.Int64 // messages
}

// Run runs the stories and prints the ledger. It removes everything that it created before it returns, even after an
// error or Ctrl-C. It returns an error if a promise was broken.
func Run(ctx context.Context, p *program.Program, o Options) (err error) {
	s := &stage{Program: p, Options: o, name: "rabbitdelay-demo-" + uuid.NewString()[:8]}
	s.orders = &orders{stage: s, queue: s.name + ".orders.expire"}
	s.posts = &posts{stage: s, queue: s.name + ".posts.publish"}
	defer func() { err = errors.Join(err, s.clear(ctx)) }()
	for _, do := range []func(context.Context) error{s.findBroker, s.openDatabase, s.openClients, s.openConsole, s.play, s.showLedger, s.hold} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// later registers a cleanup function. They run at the end, in reverse order.
func (s *stage) later(undo func(context.Context) error) { s.undo = append(s.undo, undo) }

func (s *stage) clear(ctx context.Context) (err error) {
	defer s.Waiting("removing what the demo made")()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	for _, undo := range slices.Backward(s.undo) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

// wholeSeconds has the delays of the ttl strategy, which supports no other delays.
var wholeSeconds = map[string]string{"delay.ttl.delays": "4s,5s,6s,7s"}

func (s *stage) findBroker(ctx context.Context) (err error) {
	if s.cfg, err = s.Load(wholeSeconds); err != nil {
		return err
	}
	defer s.Waiting("looking for a broker")()
	s.broker, err = broker.Start(ctx, broker.Options{
		URL: string(cmp.Or(append([]config.URL{s.cfg.Broker.URL}, s.cfg.Broker.URLs...)...)), Management: true, Durable: true,
		Verbose: s.Verbose, Log: func(line string) { s.Notef("%s", line) },
	})
	if err != nil {
		return err
	}
	s.later(func(context.Context) error { return s.broker.Close() })
	s.version = s.broker.Version()
	s.cfg.Broker.URL, s.cfg.Broker.URLs, s.cfg.Delay.Prefix = config.URL(s.broker.URL()), nil, s.name
	if s.cfg.Broker.ManagementURL == "" {
		s.cfg.Broker.ManagementURL = config.URL(s.broker.ManagementURL())
	}
	return nil
}

// openDatabase opens a database for the demo alone, because a relay sends all tasks that it finds. It is a SQLite
// file, or a new schema on the configured server.
func (s *stage) openDatabase(ctx context.Context) (err error) {
	u := s.cfg.Database.URL
	if u == "" || strings.HasPrefix(string(u), "sqlite:") {
		var dir string
		dir, err = os.MkdirTemp("", s.name)
		s.later(func(context.Context) error { return os.RemoveAll(dir) })
		u = config.URL("sqlite:" + filepath.Join(dir, "demo.db"))
	} else {
		u, err = s.makeSchema(ctx, u)
	}
	if err == nil {
		s.dbURL = u
		s.db, s.dialect, err = config.OpenDB(u)
	}
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	s.Notef("database: %s", u)
	s.later(func(context.Context) error { return s.db.Close() })
	s.db.SetMaxOpenConns(32)
	err = errors.Join(idempotency.Migrate(ctx, s.db), schedule.Migrate(ctx, s.db))
	for _, table := range slices.Concat(orderTables, postTables) {
		err = errors.Join(err, s.exec(ctx, s.db, "CREATE TABLE "+table))
	}
	return err
}

// makeSchema creates a schema, which MySQL calls a database, and returns its URL.
func (s *stage) makeSchema(ctx context.Context, u config.URL) (config.URL, error) {
	server, dialect, err := config.OpenDB(u)
	if err != nil {
		return "", err
	}
	s.later(func(context.Context) error { return server.Close() })
	inside, _ := url.Parse(string(u)) // OpenDB has parsed it before
	schema, cascade := strings.ReplaceAll(s.name, "-", "_"), ""
	if dialect == idempotency.PostgreSQL {
		q := inside.Query()
		q.Set("search_path", schema)
		inside.RawQuery, cascade = q.Encode(), " CASCADE"
	} else {
		inside.Path = schema
	}
	if err := s.exec(ctx, server, "CREATE SCHEMA "+schema); err != nil {
		return "", fmt.Errorf("creating a separate schema for the demo: %w", err)
	}
	s.later(func(ctx context.Context) error { return s.exec(ctx, server, "DROP SCHEMA "+schema+cascade) })
	return config.URL(inside.String()), nil
}

// openClients opens the clients and the task store of the stories.
func (s *stage) openClients(ctx context.Context) error {
	s.cfg.Topology = topology.Topology{Destinations: []topology.Destination{{Queue: s.orders.queue}, {Queue: s.posts.queue}}}
	strategy, err := s.cfg.Strategy(ctx, s.Logger())
	if err != nil {
		return err
	}
	c, err := s.cfg.Client(strategy, s.Logger())
	if err != nil {
		return err
	}
	s.strategy = strategy.Name()
	s.later(func(ctx context.Context) error { return s.wipe(ctx, strategy) })
	defer s.Waiting("declaring the " + s.strategy + " strategy's queues")()
	began := time.Now()
	for i := range s.clients {
		if s.clients[i], err = amqpx.Open(ctx, c); err != nil {
			return err
		}
		s.later(func(ctx context.Context) error { return s.clients[i].Close(ctx) })
	}
	s.Notef("strategy: %s, %s queues, ready in %.1f s", s.strategy, s.cfg.Delay.QueueType, time.Since(began).Seconds())
	if s.Posts > 0 {
		s.tasks, err = schedule.New(s.db, s.clients[0], schedule.Config{
			PollInterval: 200 * time.Millisecond,
			Hooks:        schedule.Hooks{Relayed: func(n int, _ bool) { s.sent.Add(int64(n)) }},
		})
	}
	return err
}

// wipe removes the demo's queues and exchanges from a broker that continues to run.
func (s *stage) wipe(ctx context.Context, strategy amqpx.Strategy) error {
	all, err := s.cfg.Describe(strategy)
	if err != nil || s.broker.Source() != broker.Environment {
		return err
	}
	conn, err := s.cfg.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	all.Exchanges = append(all.Exchanges, topology.Exchange{Name: live.DeclaredExchange(s.name, strategy.Topology())})
	return live.Broker{Conn: conn}.DeleteAll(ctx, all)
}

// work relays tasks and consumes messages until ctx ends.
func (s *stage) work(ctx context.Context, all *errgroup.Group) {
	if s.Posts > 0 {
		all.Go(func() error { return s.tasks.Run(ctx) })
	}
	for _, c := range s.clients {
		all.Go(func() error { return c.Consume(ctx, s.orders.queue, s.orders.handler(), amqpx.WithConcurrency(8)) })
		all.Go(func() error { return c.Consume(ctx, s.posts.queue, s.posts.handler(), amqpx.WithConcurrency(8)) })
	}
}

// play runs both stories concurrently until all their messages are handled.
func (s *stage) play(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	all, working := errgroup.WithContext(working)
	s.work(working, all)
	bar := s.Progress(s.Orders+s.Posts, "orders and posts")
	defer bar.Clear()
	var lives sync.WaitGroup
	begin := func(n int, life func(ctx context.Context, number int) error) {
		for i := range n {
			lives.Add(1)
			all.Go(func() error {
				defer lives.Done()
				defer bar.Add(1)
				pauseUntil(working, time.Now().Add(rand.N(8*time.Second)))
				return life(working, i+1)
			})
		}
	}
	begin(s.Orders, s.orders.life)
	begin(s.Posts, s.posts.life)
	all.Go(func() error {
		defer stop()
		lives.Wait()
		return s.settle(working)
	})
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}

// settle waits until no task is pending and every message was handled. It gives up after 30 seconds, and the ledger
// then shows what is missing.
func (s *stage) settle(ctx context.Context) error {
	for patience := time.Now().Add(30 * time.Second); time.Now().Before(patience); {
		var pending int
		err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'pending'").Scan(&pending)
		if err != nil || pending == 0 && s.handled.Load() >= s.sent.Load() {
			return err
		}
		pauseUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	return nil
}

// pauseUntil waits until the given time, and reports false if the context ended first.
func pauseUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-time.After(time.Until(at)):
		return true
	case <-ctx.Done():
		return false
	}
}

// exec runs a statement that has question marks as placeholders.
func (s *stage) exec(ctx context.Context, ex schedule.Executor, query string, args ...any) error {
	for n := 1; s.dialect == idempotency.PostgreSQL && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", "$"+strconv.Itoa(n), 1)
	}
	_, err := ex.ExecContext(ctx, query, args...)
	return err
}

// openConsole runs "rabbitdelay serve" for the console until the demo ends.
func (s *stage) openConsole(ctx context.Context) error {
	ports, err := loopback.Ports(1)
	if err != nil {
		return err
	}
	at := loopback.Address(ports[0])
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	args := []string{"serve", "--no-relay", "--listen", at, "--log-level", "error"}
	if file := s.File(); file != "" {
		args = append(args, "-f", file)
	}
	c, err := binary.Command(running, args...)
	if err != nil {
		stop()
		return err
	}
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	c.Env = append(os.Environ(), s.consoleSettings()...)
	if err := c.Start(); err != nil {
		stop()
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // its output says why it failed
	}()
	s.later(func(context.Context) error {
		stop()
		<-ended
		return nil
	})
	for deadline := time.Now().Add(30 * time.Second); !answers(ctx, at); {
		select {
		case <-ended:
			return fmt.Errorf("rabbitdelay serve exited: %s", strings.TrimSpace(output.String()))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("rabbitdelay serve does not answer at %s", at)
		}
	}
	s.Notef("console: http://%s/", at)
	return nil
}

// consoleSettings returns the settings of the console's process as environment variables, which other users of the
// machine cannot see, unlike flags.
func (s *stage) consoleSettings() []string {
	set := map[string]string{
		"BROKER_URL": string(s.cfg.Broker.URL), "BROKER_MANAGEMENT_URL": string(s.cfg.Broker.ManagementURL), "BROKER_CONNECTION_NAME": s.name + " console",
		"DELAY_PREFIX": s.name, "DELAY_STRATEGY": s.cfg.Delay.Strategy, "DELAY_QUEUE_TYPE": string(s.cfg.Delay.QueueType), "SERVE_TITLE": "rabbitdelay demo",
	}
	if s.strategy == "ttl" {
		set["DELAY_TTL_DELAYS"] = wholeSeconds["delay.ttl.delays"]
	}
	if s.Posts > 0 {
		set["DATABASE_URL"] = string(s.dbURL)
	}
	var list []string
	for name, value := range set {
		list = append(list, "RABBITDELAY_"+name+"="+value)
	}
	return list
}

// answers reports whether the console answers.
func answers(ctx context.Context, at string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}

// hold keeps the console open until the demo is interrupted. Tasks that are scheduled there are still handled.
func (s *stage) hold(ctx context.Context) error {
	if !s.Hold {
		return nil
	}
	s.Notef("the console stays open; Ctrl-C ends the demo and removes what it made")
	all, working := errgroup.WithContext(ctx)
	s.work(working, all)
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}
