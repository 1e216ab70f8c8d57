// Package snapshot reads from a broker the data that package doctor evaluates, through the management API or, if that
// does not answer, over AMQP. It changes nothing permanently on the broker.
package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Source specifies how Take reaches a broker and what it reads from it.
type Source struct {
	// Dial opens a connection, which Take closes. Required.
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// ConnectionName is a prefix of the connection_name of Dial's connections, and of no other connections. Take uses
	// it to find its own connections in the management API. It is empty if they have no name.
	ConnectionName string
	// Nodes are the addresses of single nodes of the cluster, whose clocks are measured. If nil, only the node that
	// Dial reaches is measured.
	Nodes      []Node
	Management *live.Management // client of the management API; nil if there is none
	// ProbePlugin reports whether the broker has the x-delayed-message plugin. Take calls it if the configuration
	// uses the plugin and the management API does not list the exchange types. If nil, the answer remains unknown.
	ProbePlugin func(ctx context.Context) (bool, error)
	// ProbeInstants reports whether the broker delays messages until a given time. Take calls it if the configuration
	// relies on that. It declares a temporary queue. If nil, the answer remains unknown.
	ProbeInstants func(ctx context.Context) (bool, error)
	// Peek is the number of parked messages that are read and requeued, at most 100. Default 0, because RabbitMQ
	// before 4.3 counts each read as a delivery; see Take.
	Peek   int
	Delays bool // also count ready messages in delay queues over AMQP
	// Hasty accepts the counts of dead letters as they are, even if an older count from the management API contradicts the
	// broker's own. Such a queue is then plan.Queue.Doubtful.
	Hasty bool
	// SkipClock skips the measurement of the nodes' clocks, which takes one second and sends messages through
	// exclusive queues. The clocks may still be known from Take's other readings.
	SkipClock bool
	// Standstill watches for delay queues that may keep messages for longer than their TTL. If nil, Take does not search
	// for them. Take adds one observation, and continues to observe while a queue with a TTL of at most Watch is
	// undecided, for at most about twice that time plus 17 s. To decide about queues with a longer TTL, pass the same
	// Standstill to later calls.
	Standstill *doctor.StallWatch
	Watch      time.Duration
	// Now returns this process's time. Default time.Now.
	Now func() time.Time
}

// Node is the address of one node of a cluster, or of several nodes behind a load balancer.
type Node struct {
	Address string // host and port, for display
	Dial    func(ctx context.Context) (*amqp.Connection, error)
}

// Take takes a snapshot of a broker. It declares nothing permanent, and neither sends messages to other clients'
// queues nor consumes their messages. It tests each permission with a request that the broker refuses for another
// reason if the user has the permission, and measures the clocks with messages through its own exclusive queues. If
// only AMQP is available and the user may configure the objects, it declares existing objects again as they are in the
// configuration.
//
// With Peek, it gets and requeues parked messages through the management API. RabbitMQ 4.0 to 4.2 count that as a
// delivery and drop a message after the twentieth, so Take does not peek on these versions.
//
// Take fails only if it cannot connect, if the management API belongs to another broker (*live.ClusterError), or if
// the context ends. Everything else that it cannot see is listed in doctor.Snapshot.Unchecked.
func Take(ctx context.Context, cfg doctor.Config, src Source) (doctor.Snapshot, error) {
	if src.Now == nil {
		src.Now = time.Now
	}
	c := &collector{cfg: cfg.WithDefaults(), src: src, clocks: map[string]map[string][]reading{}, visited: map[string]bool{}, older: map[string]int64{}}
	began := src.Now()
	conn, hangUp, err := dial(ctx, src.Dial)
	if err != nil {
		return doctor.Snapshot{}, err
	}
	defer hangUp()
	c.conn, c.dialed, c.connected = conn, began, src.Now()
	c.snap.Product, _ = conn.Properties["product"].(string)
	c.snap.Version, _ = conn.Properties["version"].(string)

	for _, step := range []func(context.Context) error{c.objects, c.probes, c.permissions, c.publishing, c.measure, c.standstill, c.counts, c.peek} {
		if err := step(ctx); err != nil {
			return doctor.Snapshot{}, err
		}
		if ctx.Err() != nil {
			return doctor.Snapshot{}, context.Cause(ctx)
		}
	}
	c.snap.Clocks = c.estimates()
	return c.snap, nil
}

type collector struct {
	cfg  doctor.Config
	src  Source
	snap doctor.Snapshot

	conn              *amqp.Connection
	dialed, connected time.Time                       // before and after conn was dialed
	managed           bool                            // whether the management API answers
	disabled          bool                            // whether the broker's configuration disables its statistics
	inspected         time.Time                       // when the management API was read
	mu                sync.Mutex                      // guards asked, clocks and snap.Unchecked
	asked             time.Duration                   // total duration of the later requests to the management API
	uncounted         string                          // why the broker does not count all published messages; empty if it does
	clocks            map[string]map[string][]reading // by node and method of measurement
	visited           map[string]bool                 // dead-letter queues that a requeue run is consuming
	older             map[string]int64                // message counts of dead-letter queues in the management API
}

// dial opens a connection that is closed when the context is done, because the client library cannot interrupt a call
// that waits for the broker's answer.
func dial(ctx context.Context, to func(context.Context) (*amqp.Connection, error)) (conn *amqp.Connection, hangUp func(), err error) {
	conn, err = to(ctx)
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = conn.CloseDeadline(time.Now()) // waiting calls return now
	})
	return conn, func() {
		if stop() {
			_ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) // the work is done
		} else {
			<-done
		}
	}, nil
}

func (c *collector) notef(format string, args ...any) {
	c.snap.Notes = append(c.snap.Notes, fmt.Sprintf(format, args...))
}

func (c *collector) uncheckedf(a doctor.Area, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap.Unchecked = append(c.snap.Unchecked, doctor.Unchecked{Area: a, Why: fmt.Sprintf(format, args...)})
}

// onChannel runs one operation on its own channel, because the broker closes the channel when it refuses an
// operation.
func onChannel(conn *amqp.Connection, op func(ch *amqp.Channel) error) error {
	ch, err := channels.Open(conn)
	if err != nil {
		return err
	}
	err = op(ch)
	_ = ch.Close() // the broker may have closed it
	return err
}

func isCode(err error, code int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == code
}

// probes checks whether the broker has the plugin, and whether it delays messages until a given time, if the
// configuration needs that and it is not known yet.
func (c *collector) probes(ctx context.Context) error {
	if c.cfg.Plugin != doctor.PluginUnused && c.snap.ExchangeTypes == nil && c.src.ProbePlugin != nil {
		there, err := c.src.ProbePlugin(ctx)
		switch {
		case err != nil:
			c.uncheckedf(doctor.AreaPlugin, "could not find out whether the broker has the plugin: %s", oneLine(err))
		case there:
			c.snap.ExchangeTypes = []string{"x-delayed-message"}
		default:
			c.snap.ExchangeTypes = []string{}
		}
	}
	if ctx.Err() == nil && c.cfg.WantsInstants() && c.src.ProbeInstants != nil {
		delays, err := c.src.ProbeInstants(ctx)
		if err != nil {
			c.uncheckedf(doctor.AreaInstants, "could not test whether the broker delays messages until a given time: %s", oneLine(err))
			return nil
		}
		c.snap.Instants = &delays
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// These limits keep a slow management API from preventing Take's checks over AMQP. Their sum is below 10 s, so that
// commands and the console show what AMQP knows after about that time, even if the management API does not answer.
const (
	inspectionPatience = 5 * time.Second // for the first requests, which are sent together
	furtherPatience    = 4 * time.Second // for all later requests together
)

// ask returns a context for a later request to the management API. It ends when all these requests together have
// taken longer than furtherPatience.
func (c *collector) ask(ctx context.Context) (context.Context, context.CancelFunc) {
	began := time.Now()
	c.mu.Lock()
	left := furtherPatience - c.asked
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, left)
	return ctx, func() {
		cancel()
		c.mu.Lock()
		c.asked += time.Since(began)
		c.mu.Unlock()
	}
}

// exhausted reports whether no time is left for further requests to the management API.
func (c *collector) exhausted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked >= furtherPatience
}

func (c *collector) objects(ctx context.Context) error {
	if c.src.Management != nil {
		c.inspected = time.Now()
		one, cancel := context.WithTimeout(ctx, inspectionPatience)
		defer cancel()
		var found plan.State
		var unread error
		further := c.alongside()
		var wg sync.WaitGroup // concurrently, because a slow API takes seconds for each request
		wg.Go(func() { found, unread = c.src.Management.Inspect(one, c.cfg.Want) })
		wg.Go(func() { further.management(one) })
		if all := c.src.Management.Each(); len(all) > 1 { // otherwise management reads the only node's date
			wg.Go(func() { further.dates(one, all) })
		}
		err := c.src.Management.SameCluster(one, c.conn)
		if err != nil {
			cancel()
		}
		wg.Wait()
		err = cmp.Or(err, unread)
		if err != nil && errors.Is(one.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v", inspectionPatience)
		}
		if _, foreign := errors.AsType[*live.ClusterError](err); foreign {
			return err
		}
		if err == nil {
			c.snap.Live, c.managed = found, true
			c.merge(further)
			return nil
		}
		c.uncheckedf(doctor.AreaManagement, "the management API %s; dead letters in transit, queues that are not in the file, and blocked connections were not checked: %s", live.Failure(err), oneLine(err))
	} else {
		c.uncheckedf(doctor.AreaManagement, "without the management API (broker.management_url), dead letters in transit, queues that are not in the file, and blocked connections cannot be checked")
	}
	found, err := live.NewAMQPInspector(c.conn).Inspect(ctx, c.cfg.Want)
	if isCode(err, amqp.AccessRefused) {
		c.uncheckedf(doctor.AreaArguments, "the user may not configure the objects, so only their existence was checked, not their arguments")
		found, err = c.passive(ctx)
	}
	c.snap.Live = found
	return err
}

// passive finds out over AMQP which objects exist. Since RabbitMQ 4.3, a user without any permission on an object
// cannot find out whether it exists. Such objects are assumed to exist.
func (c *collector) passive(ctx context.Context) (plan.State, error) {
	found := plan.State{Source: "AMQP, by passive declarations", Exchanges: map[string]plan.Exchange{}, Queues: map[string]plan.Queue{}}
	hidden := 0
	exists := func(kind topology.Kind, name string, look func(*amqp.Channel) error) (there bool, err error) {
		err = onChannel(c.conn, look)
		if isCode(err, amqp.AccessRefused) {
			hidden++
			return true, nil
		}
		if isCode(err, amqp.NotFound) {
			return false, nil
		}
		if err = cmp.Or(context.Cause(ctx), err); err != nil {
			return false, fmt.Errorf("%s %s: %w", kind, name, err)
		}
		return true, nil
	}
	for _, e := range c.cfg.Want.Exchanges {
		there, err := exists(topology.KindExchange, e.Name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
		})
		if err != nil {
			return found, err
		}
		if there {
			found.Exchanges[e.Name] = plan.Exchange{}
		}
	}
	names := make([]string, 0, len(c.cfg.Want.Queues))
	for _, want := range c.cfg.Want.Queues {
		names = append(names, want.Name)
	}
	counts, err := live.Counts(ctx, c.conn, names)
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		return found, err
	}
	for _, name := range names {
		n, seen := counts[name]
		switch {
		case !seen:
			hidden++
			found.Queues[name] = plan.Queue{Hidden: true}
		case !n.Missing:
			found.Queues[name] = plan.Queue{Messages: n.Ready, Consumers: n.Consumers, Unavailable: n.Unavailable}
		}
	}
	if hidden > 0 {
		c.uncheckedf(doctor.AreaObjects, "%s could not be seen; RabbitMQ %s requires a permission for each", shown.Count(hidden, "object", "objects"), c.snap.Version)
	}
	return found, nil
}
