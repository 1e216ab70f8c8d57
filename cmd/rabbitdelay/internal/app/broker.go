package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
	public "github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Broker is a connected broker together with its desired topology.
type Broker struct {
	live.Broker

	Config   *config.Config
	Strategy amqpx.Strategy
	Want     topology.Topology
	// Readable is true if the inspector uses the management API. The AMQP inspector cannot list objects. It can only check
	// whether an object exists, by declaring it.
	Readable bool

	conn *amqp.Connection
}

// Close closes the connection.
func (b *Broker) Close() { Close(b.conn) }

// Broker loads the settings, connects, and chooses the inspector: the management API if it answers, and AMQP otherwise.
func (a *App) Broker(ctx context.Context) (*Broker, error) {
	c, err := a.Load(nil)
	if err != nil {
		return nil, err
	}
	b := &Broker{Config: c}
	if b.Strategy, err = c.Strategy(ctx, a.Logger()); err != nil {
		return nil, err
	}
	if b.Want, err = c.Describe(b.Strategy); err != nil {
		return nil, err
	}
	return b, a.Connect(ctx, b)
}

// Connect connects to the broker, and chooses the inspector in the same way as App.Broker.
func (a *App) Connect(ctx context.Context, b *Broker) (err error) {
	if b.conn, err = b.Config.Dial(ctx); err != nil {
		return err
	}
	b.Conn = b.conn
	first := &inspected{}
	why, err := management(ctx, b.Config, b.conn, func(ctx context.Context, m *live.Management) (err error) {
		first.Management, first.at = m, time.Now()
		first.found, err = m.Inspect(ctx, topology.Topology{})
		return err
	})
	switch err = cmp.Or(ctx.Err(), err); {
	case err != nil:
		b.Close()
		return err
	case why == nil:
		b.Inspector, b.Readable = first, true
	default:
		a.Notef("note: inspecting the broker over AMQP, which shows neither bindings nor policies: %s", shown.OneLine(why.Error()))
		b.Inspector = live.NewAMQPInspector(b.conn)
	}
	return nil
}

// inspected is a management API whose objects have been read once. The first Inspect returns this state, unless it is
// outdated, because a slow API takes seconds to answer.
type inspected struct {
	*live.Management

	mu    sync.Mutex
	found plan.State // empty after the first Inspect
	at    time.Time  // when it was read
}

// Reread makes the next inspection read the objects again. Commands that delete call it, so that they do not rely on
// what was read when they started.
func (b *Broker) Reread() {
	if i, ok := b.Inspector.(*inspected); ok {
		i.take()
	}
}

// take returns the state that was read first, unless it is outdated or was already taken.
func (i *inspected) take() (found plan.State, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	found, i.found = i.found, plan.State{}
	return found, found.Source != "" && time.Since(i.at) < outdated
}

// outdated is the age at which a command reads the objects again.
const outdated = 10 * time.Second

func (i *inspected) Inspect(ctx context.Context, want topology.Topology) (plan.State, error) {
	if found, ok := i.take(); ok {
		return found, nil
	}
	return i.Management.Inspect(ctx, want)
}

// managementPatience is how long the management API may take to answer before AMQP is used instead.
const managementPatience = 5 * time.Second

// management checks that the management API belongs to the same broker as conn, and calls read at the same time. If the
// API does not answer, why is the reason. If it belongs to another broker, management returns an error.
func management(ctx context.Context, c *config.Config, conn *amqp.Connection, read func(context.Context, *live.Management) error) (why, err error) {
	api, err := c.Management()
	if errors.Is(err, config.ErrNoManagement) {
		return err, nil
	} else if err != nil {
		return nil, err
	}
	m := live.Internal(api)
	looking, cancel := context.WithTimeout(ctx, managementPatience)
	defer cancel()
	var unread error
	var wg sync.WaitGroup
	wg.Go(func() { unread = read(looking, m) })
	if why = m.SameCluster(looking, conn); why != nil {
		cancel()
	}
	wg.Wait()
	why = cmp.Or(why, unread)
	if why != nil && errors.Is(looking.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		why = fmt.Errorf("no answer from the management API within %v", managementPatience)
	}
	if foreign, ok := errors.AsType[*live.ClusterError](why); ok {
		return nil, foreign
	}
	return why, nil
}

// Close closes an idle connection.
func Close(conn *amqp.Connection) { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }

// Open connects a client with the given settings.
func (a *App) Open(ctx context.Context, c *config.Config, s amqpx.Strategy) (*amqpx.Client, error) {
	cfg, err := c.Client(s, a.Logger())
	if err != nil {
		return nil, err
	}
	return amqpx.Open(ctx, cfg)
}

// OpenUndeclared connects a client that declares nothing, and changes c accordingly. Commands that users run by hand
// call it, because they may have given the wrong file. The returned management API is nil if it does not answer.
func (a *App) OpenUndeclared(ctx context.Context, c *config.Config) (*amqpx.Client, *public.Management, error) {
	conn, err := c.Dial(ctx) // a failed Dial returns the broker's error immediately, whereas a client would keep retrying
	if err != nil {
		return nil, nil, err
	}
	m, err := a.ManagementIfThere(ctx, c, conn)
	Close(conn)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.Strategy(ctx, a.Logger())
	if err != nil {
		return nil, nil, err
	}
	c.Broker.Declare = amqpx.DeclareNothing
	client, err := a.Open(ctx, c, Undeclared{s})
	return client, m, err
}

// Undeclared wraps a strategy so that the client does not declare the strategy's objects.
type Undeclared struct{ amqpx.Strategy }

// Topology returns an empty topology.
func (Undeclared) Topology() topology.Topology { return topology.Topology{} }

// ManagementIfThere returns the broker's management API, or nil if it does not answer. If it does not answer although
// broker.management_url is set, ManagementIfThere prints a note. Functions that need the API return an error for nil.
func (a *App) ManagementIfThere(ctx context.Context, c *config.Config, conn *amqp.Connection) (*public.Management, error) {
	var m *live.Management
	why, err := management(ctx, c, conn, func(_ context.Context, api *live.Management) error {
		m = api
		return nil
	})
	if err == nil && why == nil {
		return live.Public[*public.Management](m), nil
	}
	if m != nil && c.Broker.ManagementURL != "" {
		a.Notef("note: the management API at %s %s: %v", m.Endpoint(), live.Failure(why), why)
	}
	return nil, err
}

// Examined completes cfg and src for an inspection of the broker. It gives the connections of c a unique name that
// starts with name.
func (a *App) Examined(ctx context.Context, c *config.Config, cfg *doctor.Config, src *snapshot.Source, name string) (err error) {
	cfg.Prefix, cfg.File, cfg.Plugin, cfg.MaxRouteQueues = c.Delay.Prefix, c.File(), pluginUse(c), c.Broker.MaxRouteQueues
	switch s, serr := c.Strategy(ctx, a.Logger()); {
	case serr == nil:
		cfg.Want, err = c.Describe(s)
	case errors.Is(serr, live.ErrNoPlugin): // inspect everything that does not depend on the plugin
		cfg.Want, err = topology.DeliveryTopology(c.Delay.Prefix).Merge(c.Topology.WithDestinationQueues(c.Delay.Prefix, c.Delay.QueueType))
	default:
		err = serr
	}
	if err != nil {
		return err
	}
	// The name is unique, so that this connection can be found in the management API, which reports when it was opened.
	c.Broker.ConnectionName = name + " " + uuid.NewString()
	src.Dial, src.ConnectionName = c.Dial, c.Broker.ConnectionName
	if src.Nodes, err = nodesOf(c); err != nil {
		return err
	}
	src.ProbePlugin = func(ctx context.Context) (bool, error) {
		err := live.ProbePlugin(ctx, c.Dial)
		if errors.Is(err, live.ErrNoPlugin) {
			return false, nil
		}
		return err == nil, err
	}
	if cfg.Vhost, err = VhostOf(c); err != nil {
		return err
	}
	api, err := c.Management()
	src.Management = live.Internal(api)
	if errors.Is(err, config.ErrNoManagement) || errors.Is(err, config.ErrNoBroker) {
		return nil // missing parts are reported where they are needed
	}
	return err
}

// nodesOf returns a node for each address in broker.url and broker.urls. Its Dial connects only to that address.
func nodesOf(c *config.Config) (nodes []snapshot.Node, err error) {
	for _, u := range append([]config.URL{c.Broker.URL}, c.Broker.URLs...) {
		if u == "" {
			continue
		}
		uri, err := brokerurl.Parse(string(u))
		if err != nil {
			return nil, fmt.Errorf("broker.url: %w", err)
		}
		one := *c
		one.Broker.URL, one.Broker.URLs = u, nil
		nodes = append(nodes, snapshot.Node{Address: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), Dial: one.Dial})
	}
	return nodes, nil
}

// VhostOf returns the virtual host in the broker's URLs, or "/" if there are none.
func VhostOf(c *config.Config) (string, error) {
	for _, u := range append([]config.URL{c.Broker.URL}, c.Broker.URLs...) {
		if u != "" {
			uri, err := brokerurl.Parse(string(u))
			return uri.Vhost, err
		}
	}
	return "/", nil
}

func pluginUse(c *config.Config) doctor.PluginUse {
	switch {
	case c.Delay.Strategy == config.StrategyPlugin:
		return doctor.PluginRequired
	case c.Delay.Strategy == config.StrategyAuto && (c.Delay.Plugin.Min > 0 || c.Delay.Plugin.Max > 0):
		return doctor.PluginOptional
	}
	return doctor.PluginUnused
}
