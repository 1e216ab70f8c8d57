package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"    // mysql://
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"   // sqlite:
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// run is one run of Run, with the servers that it started.
type run struct {
	o      Options
	result *Result
	tag    string // of this run's names on brokers that others use too

	main     *broker.Broker
	plugged  *broker.Broker // with the x-delayed-message plugin
	noPlugin string         // why there is none
	postgres *database.Server
	db       *sql.DB
	redis    *database.Server
}

func newRun(o Options) *run {
	return &run{
		o:   o,
		tag: fmt.Sprintf("rabbitdelay-bench-%x", time.Now().UnixNano()&0xffffff),
		result: &Result{
			Started: time.Now(), Quick: o.Quick, Machine: machine(),
			Sizes: Sizes{Messages: o.Messages, Rate: o.Rate, Repeats: o.Repeats, Pending: o.Pending, Body: o.Body, Concurrency: o.Concurrency},
		},
	}
}

// errLeftOut ends a scenario that lacks a part.
var errLeftOut = errors.New("left out")

func (r *run) all(ctx context.Context) error {
	defer func() { r.result.Seconds = time.Since(r.result.Started).Seconds() }()
	if err := r.startBroker(ctx); err != nil {
		return err
	}
	for _, name := range Scenarios() {
		if !slices.Contains(r.o.Scenarios, name) {
			continue
		}
		s := &Scenario{Name: name, Servers: []string{"RabbitMQ " + r.main.Version()}}
		r.result.Scenarios = append(r.result.Scenarios, s)
		began := time.Now()
		err := r.scenario(ctx, s)
		s.Seconds = time.Since(began).Seconds()
		r.o.Log(fmt.Sprintf("%s took %.0f s", name, s.Seconds))
		if errors.Is(err, errLeftOut) && len(r.o.Scenarios) > 1 {
			s.notef("%v", err)
			r.o.Log(fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if err != nil {
			s.notef("not finished: %v", err)
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (r *run) scenario(ctx context.Context, s *Scenario) error {
	switch s.Name {
	case ScenarioPublish:
		return r.publish(ctx, s)
	case ScenarioConsume:
		return r.consume(ctx, s)
	case ScenarioSchedule:
		return r.schedule(ctx, s)
	case ScenarioBulk:
		return r.bulk(ctx, s)
	case ScenarioConsole:
		return r.console(ctx, s)
	case ScenarioLatency:
		return r.latency(ctx, s)
	case ScenarioSustain:
		return r.sustain(ctx, s)
	case ScenarioNative:
		return r.native(ctx, s)
	case ScenarioCost:
		return r.cost(ctx, s)
	case ScenarioDeclare:
		return r.declare(ctx, s)
	case ScenarioTelemetry:
		return r.telemetry(ctx, s)
	default:
		return r.pending(ctx, s)
	}
}

func (r *run) startBroker(ctx context.Context) error {
	var err error
	r.main, err = broker.Start(ctx, broker.Options{URL: r.o.URL, Log: r.o.Log})
	return err
}

// freshBroker gives a scenario that looks at the broker's memory one that has
// done nothing yet, where the broker is ours.
func (r *run) freshBroker(ctx context.Context) error {
	if r.main.Source() == broker.Environment {
		return nil
	}
	if err := r.main.Close(); err != nil {
		return err
	}
	return r.startBroker(ctx)
}

// pluginLines are the release lines on which the plugin runs, the newest first.
var pluginLines = []string{"4.2", "4.1", "4.0", "3.13", "3.12", "3.11", "3.10"}

// pluginBroker is a broker with the plugin, or nil when there is none, in which
// case the scenario has a note that says why.
func (r *run) pluginBroker(ctx context.Context, s *Scenario) (*broker.Broker, error) {
	if r.plugged == nil && r.noPlugin == "" {
		if err := r.startPluginBroker(ctx); err != nil {
			return nil, err
		}
	}
	if r.plugged == nil {
		s.notef("no comparison with the x-delayed-message plugin: %s", r.noPlugin)
		return nil, nil
	}
	s.Servers = append(s.Servers, "RabbitMQ "+r.plugged.Version()+" with the x-delayed-message plugin")
	return r.plugged, nil
}

func (r *run) startPluginBroker(ctx context.Context) error {
	if r.main.Source() == broker.Environment {
		r.noPlugin = "the broker was given, and no other is started beside it"
		return nil
	}
	lines, err := broker.Versions(ctx)
	if err != nil {
		return err
	}
	for _, line := range pluginLines {
		file, why := broker.PluginAvailable(line)
		if file == "" || !slices.Contains(lines, line) {
			if r.noPlugin == "" || file != "" {
				r.noPlugin = why
			}
			continue
		}
		r.noPlugin = ""
		r.plugged, err = broker.Start(ctx, broker.Options{Version: line, Plugin: true, Log: r.o.Log})
		return err
	}
	if r.noPlugin == "" {
		r.noPlugin = "no RabbitMQ before 4.3 is at hand"
	}
	return nil
}

// database gives PostgreSQL with the tables of idempotency and schedule. It
// waits for the disk at every commit, as it does for its users.
func (r *run) database(ctx context.Context, s *Scenario) (*sql.DB, error) {
	if r.db == nil {
		server, err := database.Start(ctx, database.PostgreSQL, database.Options{Durable: true})
		if errors.Is(err, database.ErrNotInstalled) {
			return nil, fmt.Errorf("%w: %w", errLeftOut, err)
		}
		if err != nil {
			return nil, err
		}
		r.postgres = server
		db, _, err := config.OpenDB(config.URL(server.URL()))
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(100)
		db.SetMaxIdleConns(100)
		r.db = db
		if err := errors.Join(idempotency.Migrate(ctx, db), schedule.Migrate(ctx, db)); err != nil {
			return nil, err
		}
	}
	var version string
	if err := r.db.QueryRowContext(ctx, "SHOW server_version").Scan(&version); err != nil {
		return nil, err
	}
	s.Servers = append(s.Servers, "PostgreSQL "+version)
	return r.db, nil
}

func (r *run) startRedis(ctx context.Context) (*database.Server, error) {
	if r.redis != nil {
		return r.redis, nil
	}
	server, err := database.Start(ctx, database.Redis, database.Options{})
	if errors.Is(err, database.ErrNotInstalled) {
		return nil, fmt.Errorf("%w: %w", errLeftOut, err)
	}
	r.redis = server
	return server, err
}

// client is a client on a broker with names of its own.
type client struct {
	*amqpx.Client

	queue  string // a destination
	conn   *amqp.Connection
	all    topology.Topology // everything that was made
	broker *broker.Broker
}

// open connects a client whose strategy is made for its prefix.
func (r *run) open(ctx context.Context, b *broker.Broker, name string, t topology.QueueType, strategy strategyFor, hooks ...amqpx.Hook) (*client, error) {
	prefix := r.tag + "-" + name
	s, err := strategy(prefix)
	if err != nil {
		return nil, err
	}
	c := &client{queue: prefix + ".orders", broker: b}
	dest := topology.Destination{Queue: c.queue}
	c.all = s.Topology()
	c.all.Exchanges = append(c.all.Exchanges, topology.Exchange{Name: topology.DeclaredExchange(prefix, s.Topology())})
	c.all.Queues = append(c.all.Queues, dest.Queues(t)...)
	if c.Client, err = amqpx.Open(ctx, amqpx.Config{URL: b.URL(), Strategy: s, QueueType: t, Hooks: hooks}); err != nil {
		return nil, err
	}
	if c.conn, err = dialRaw(b.URL()); err != nil {
		return nil, errors.Join(err, c.Client.Close(ctx))
	}
	// Declares and binds the destination, so that the first repeat does not.
	if err := c.Send(ctx, amqpx.Message{Queue: c.queue}); err != nil {
		return nil, errors.Join(err, c.close(ctx))
	}
	if err := c.purge(); err != nil {
		return nil, joined(err, c.close(ctx))
	}
	return c, nil
}

// purge empties all queues.
func (c *client) purge() error {
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, q := range c.all.Queues {
		if _, err := ch.QueuePurge(q.Name, false); err != nil {
			return fmt.Errorf("purge %s: %w", q.Name, err)
		}
	}
	return nil
}

// plain makes a further queue without anything to it.
func (c *client) plain(name string, t topology.QueueType) (string, error) {
	name = c.queue + "." + name
	c.all.Queues = append(c.all.Queues, topology.Queue{Name: name, Type: t})
	return name, declarePlain(c.conn, name, t)
}

// close takes everything off the broker.
func (c *client) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := c.Client.Close(ctx)
	derr := live.Broker{Conn: c.conn}.Wipe(ctx, c.all)
	_ = c.conn.CloseDeadline(time.Now().Add(2 * time.Second)) // the work is done
	return errors.Join(err, derr)
}

func (r *run) close() error {
	var errs []error
	if r.db != nil {
		errs = append(errs, r.db.Close())
	}
	for _, s := range []*database.Server{r.postgres, r.redis} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	for _, b := range []*broker.Broker{r.main, r.plugged} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}
