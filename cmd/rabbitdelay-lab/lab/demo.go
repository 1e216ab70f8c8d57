package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// How the demo's time passes.
const (
	demoCreation = 8 * time.Second // in which the orders are placed
	demoMinDelay = 4 * time.Second // until an order expires
	demoMaxDelay = 8 * time.Second
	demoDelays   = "4s,5s,6s,7s,8s" // declared for the ttl strategy, where no others are
	demoGrace    = 30 * time.Second // after the last due instant, before what is missing counts as lost
	demoCleanup  = 30 * time.Second
)

func (a *app) demoCommand() *cobra.Command {
	o := demoOptions{orders: 200, posts: 100, story: storyAll}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Cancel unpaid orders and publish posts in time, once each, on a real broker and database",
		Long: `demo tells two stories side by side, or one of them (--story).

Orders are placed in a database within eight seconds. Each sends a message that is
due 4 to 8 seconds later. About half of the orders are paid before that; the
others are cancelled by two consumers, which get some of the messages twice.

Posts are scheduled as tasks in the transactions that write them, due 3 to 6
seconds later. Some are moved, earlier or later, some cancelled, some fired at
once, some at the very instant at which they are due. Each has to be published
once, at its last due instant, or never.

At the end a ledger compares what was done with what the database holds.

The broker is the one at --url or AMQP_URL; else a container, where Docker has or
gets an image; else a private node of an installed rabbitmq-server. The database
is SQLite in a temporary directory unless --db says otherwise; on a server it works
in a schema (PostgreSQL) or database (MySQL) of its own. What the demo makes has
names of its own and is removed at the end. Where the user may make no schema or
database, and in a SQLite file that was given, the tables of "rabbitdelay migrate"
stay.

With --json the last line is one object. The exit code is 1 when anything was
early, lost or done twice, or published although it was cancelled.`,
		Example: `  rabbitdelay-lab demo
  rabbitdelay-lab demo --story posts --posts 1000
  rabbitdelay-lab demo --orders 2000 --queue-type classic --json
  rabbitdelay-lab demo --url amqp://user:password@host/ --db postgres://user:password@host/shop`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.demo(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.db, "db", "", "database: postgres://…, mysql://… or sqlite:path")
	f.IntVar(&o.orders, "orders", o.orders, "number of orders")
	f.IntVar(&o.posts, "posts", o.posts, "number of posts")
	f.StringVar(&o.story, "story", o.story, "orders, posts or all")
	f.BoolVar(&o.install, "install-broker", false, "install the package rabbitmq-server when there is no broker (root, apt-get)")
	_ = c.RegisterFlagCompletionFunc("story", cobra.FixedCompletions([]string{storyAll, storyOrders, storyPosts}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return c
}

// Values of --story.
const (
	storyAll    = "all"
	storyOrders = "orders"
	storyPosts  = "posts"
)

type demoOptions struct {
	db, story     string
	orders, posts int
	install       bool
}

// check also drops the numbers of the story that is not told.
func (o *demoOptions) check() error {
	const most = 1_000_000
	switch {
	case o.orders < 1 || o.orders > most:
		return fmt.Errorf("--orders: %d; expected 1 to %d", o.orders, most)
	case o.posts < 1 || o.posts > most:
		return fmt.Errorf("--posts: %d; expected 1 to %d", o.posts, most)
	}
	switch o.story {
	case storyAll:
	case storyOrders:
		o.posts = 0
	case storyPosts:
		o.orders = 0
	default:
		return fmt.Errorf("--story: %q; expected orders, posts or all", o.story)
	}
	return nil
}

// demo finds the parts, runs on them, and leaves nothing behind.
func (a *app) demo(ctx context.Context, o demoOptions) (err error) {
	run := strings.ReplaceAll(uuid.NewString(), "-", "")[:8]
	cfg, err := a.Load(a.Database(o.db), map[string]string{"delay.ttl.delays": demoDelays})
	if err != nil {
		return err
	}
	done := a.Waiting("looking for a broker")
	var which []string
	b, err := broker.Start(ctx, broker.Options{
		URL: string(cfg.GivenURL()), InstallPackage: o.install,
		Log: func(line string) { which = append(which, line) },
	})
	done()
	for _, line := range which {
		a.Notef("%s", line)
	}
	if err != nil {
		return err
	}
	// Everything is cleaned up whatever happens, also after Ctrl-C.
	cleanup := func(f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoCleanup)
		defer cancel()
		if cerr := f(ctx); cerr != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up: %w", cerr))
		}
	}
	defer cleanup(func(context.Context) error {
		defer a.Waiting("removing what the demo made")()
		return b.Close()
	})

	store, err := openStore(ctx, cfg.Database.URL, run)
	if err != nil {
		return err
	}
	defer cleanup(store.close)
	a.Notef("database: %s", store.describe())

	d := &demo{a: a, run: run, store: store, orders: make([]*order, o.orders)}
	cfg.Broker.URL, cfg.Broker.URLs = config.URL(b.URL()), nil
	cfg.Delay.Prefix = "rabbitdelay-demo-" + run
	d.queue = cfg.Delay.Prefix + ".orders.expire"
	store.scope = d.queue
	cfg.Topology = topology.Topology{Destinations: []topology.Destination{{Queue: d.queue}}}
	d.plan(cfg.Delay)
	if o.posts > 0 {
		d.posts = &posts{store: store, queue: cfg.Delay.Prefix + ".posts.publish", list: planPosts(run, o.posts)}
		store.postScope = d.posts.queue
		cfg.Topology.Destinations = append(cfg.Topology.Destinations, topology.Destination{Queue: d.posts.queue})
		if cfg.Delay.Strategy == config.StrategyTTL {
			cfg.Delay.TTL.RoundUp = true // what remains of a post's delay is not a declared one
		}
		if err := store.openPosts(ctx); err != nil {
			return err
		}
	}
	strategy, err := cfg.Strategy(ctx, a.Logger())
	if err != nil {
		return err
	}
	if b.Source() == broker.Environment {
		defer cleanup(func(ctx context.Context) error {
			defer a.Waiting("removing what the demo made")()
			return removeTopology(ctx, cfg, strategy)
		})
	}
	l, err := d.all(ctx, cfg, strategy)
	if err != nil {
		return err
	}
	l.Strategy, l.Broker, l.Database = strategy.Name(), b.Version(), string(store.dialect)
	return a.showLedger(l)
}

// all runs the demo on connected clients and draws up the ledger.
func (d *demo) all(ctx context.Context, cfg *config.Config, s amqpx.Strategy) (ledger, error) {
	client, err := cfg.Client(s, d.a.Logger())
	if err != nil {
		return ledger{}, err
	}
	began := time.Now()
	done := sync.OnceFunc(d.a.Waiting("declaring the " + s.Name() + " strategy's queues"))
	defer done()
	defer d.closeClients()
	// Each consumer is a client of its own, as if in a process of its own.
	for i := range d.clients {
		client.ConnectionName = fmt.Sprintf("rabbitdelay demo %d", i)
		if d.clients[i], err = amqpx.Open(ctx, client); err != nil {
			return ledger{}, err
		}
	}
	if d.raw, err = cfg.Dial(ctx); err != nil {
		return ledger{}, err
	}
	defer func() { _ = d.raw.CloseDeadline(time.Now().Add(2 * time.Second)) }() // only for copies
	done()
	d.a.Notef("strategy: %s, %s queues, ready in %.1f s", s.Name(), cmp.Or(string(cfg.Delay.QueueType), "quorum"), time.Since(began).Seconds())
	if err := d.tell(ctx); err != nil {
		return ledger{}, err
	}
	found, err := d.store.facts(ctx, d.queue)
	if err != nil {
		return ledger{}, err
	}
	l := d.reckon(found)
	if d.posts != nil {
		l.Posts, err = d.posts.reckon(ctx)
	}
	return l, err
}

// tell plays the stories side by side.
func (d *demo) tell(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	var postsErr error // valid once that is closed
	if d.posts == nil {
		close(ended)
	} else {
		d.posts.raw = d.raw
		go func() {
			defer close(ended)
			if postsErr = d.posts.run(ctx, d.clients[0], d.clients[1:]); postsErr != nil {
				cancel(postsErr) // the orders need not go on
			}
		}()
	}
	if len(d.orders) > 0 {
		if err := d.play(ctx); err != nil {
			cancel(err)
			<-ended
			return context.Cause(ctx) // the first of both
		}
	}
	d.awaitPosts(ended)
	return postsErr
}

// awaitPosts shows how far the posts are.
func (d *demo) awaitPosts(ended <-chan struct{}) {
	total := 0
	if d.posts != nil {
		total = len(d.posts.list)
	}
	bar := d.a.Progress(total, "publishing posts")
	defer bar.Clear()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			bar.Set(int(min(d.posts.published(), int64(total))), "posts published")
		}
	}
}

func (d *demo) closeClients() {
	for _, c := range d.clients {
		if c != nil {
			_ = c.Close() // its consumers have returned
		}
	}
}

// removeTopology takes the demo's queues and exchanges off a broker that is not
// the demo's own.
func removeTopology(ctx context.Context, cfg *config.Config, s amqpx.Strategy) error {
	want, err := cfg.Describe(s)
	if err != nil {
		return err
	}
	conn, err := cfg.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }() // the work is done
	err = live.Broker{Conn: conn}.Wipe(ctx, want)
	return err
}

// temporaryDirectory holds the demo's own database.
func temporaryDirectory() (string, error) { return os.MkdirTemp("", "rabbitdelay-demo-") }
