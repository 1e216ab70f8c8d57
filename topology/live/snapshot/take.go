// Package snapshot reads from a broker what package doctor judges, by the management API or, if that does not
// answer, by AMQP. It changes nothing on the broker.
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

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Source is how Take reaches a broker.
type Source struct {
	// Dial opens a connection, which Take closes. Required.
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// ConnectionName is the beginning of the connection_name that Dial's connections have and no others, so
	// that they are found in the management API; empty if they have none.
	ConnectionName string
	// Nodes are the ways to single nodes of the cluster, whose clocks are measured; nil for that of Dial alone.
	Nodes      []Node
	Management *live.Management // reads the management API; nil for none
	// ProbePlugin reports whether the broker has the x-delayed-message plugin. It is called if the
	// configuration uses the plugin and the management API does not show it; nil leaves the question open.
	ProbePlugin func(ctx context.Context) (bool, error)
	// ProbeInstants reports whether the broker delays by an instant. It is called if the configuration relies
	// on that, and makes a temporary queue; nil leaves the question open.
	ProbeInstants func(ctx context.Context) (bool, error)
	// Peek is how many parked messages are read and put back, at most 100. Default 0, because RabbitMQ before
	// 4.3 counts each read as a delivery; see Take.
	Peek   int
	Delays bool // counts anew what is ready in delay queues too
	// Hasty takes counts of dead letters as they are, also where one that is up to 5 s
	// old contradicts the broker's own.
	Hasty bool
	// SkipClock leaves out the second in which messages through queues of its own
	// measure the nodes' clocks. Others of Take's readings may still tell them.
	SkipClock bool
	// Standstill watches delay queues that may keep messages for longer than their TTL; nil: none are looked
	// for. Take gives it a look, and others while a queue with a TTL of at most Watch is not decided, for about
	// twice that and 17 s at most. Given again, it decides those with a longer TTL.
	Standstill *doctor.Standstill
	Watch      time.Duration
	// Now is this process's clock, default time.Now.
	Now func() time.Time
}

// Node is the way to a node of a cluster, or to several behind one address.
type Node struct {
	Address string // host and port, for people
	Dial    func(ctx context.Context) (*amqp.Connection, error)
}

// Take takes a snapshot of a broker. It declares nothing permanent, and neither sends messages to others'
// queues nor takes any. It tests permissions by requests that the broker refuses for another reason if the user
// has the right, and the clocks by messages through its own exclusive queues. Over AMQP alone, for a user who
// may configure the objects, it declares existing objects again as described.
//
// With Peek, parked messages are got and put back by the management API. RabbitMQ 4.0 to 4.2 counts that as a
// delivery and drops a message after the twentieth, so Take does not peek there.
//
// It fails only when it cannot connect, when the management API is another broker's (*live.ClusterError), or
// when the context ends; what else it cannot see it lists in doctor.Snapshot.Unseen.
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
	c.snap.Version, _ = conn.Properties["version"].(string)

	for _, step := range []func(context.Context) error{c.objects, c.management, c.probes, c.permissions, c.publishing, c.measure, c.standstill, c.counts, c.peek} {
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
	managed           bool                            // the management API answers
	inspected         time.Time                       // when it was read
	mu                sync.Mutex                      // guards asked
	asked             time.Duration                   // how long it took to answer what was asked of it since
	uncounted         string                          // why it does not count all that is published; empty if it does
	clocks            map[string]map[string][]reading // by node and way to measure
	visited           map[string]bool                 // queues of dead letters that a run of requeue is at
	older             map[string]int64                // and how many messages the management API has of each
}

// dial connects; the connection ends with the context, because the client
// library cannot interrupt what waits for the broker's answer.
func dial(ctx context.Context, to func(context.Context) (*amqp.Connection, error)) (conn *amqp.Connection, hangUp func(), err error) {
	conn, err = to(ctx)
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = conn.CloseDeadline(time.Now()) // what waits returns now
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

func (c *collector) unseenf(a doctor.Area, format string, args ...any) {
	c.snap.Unseen = append(c.snap.Unseen, doctor.Unseen{Area: a, Why: fmt.Sprintf(format, args...)})
}

// onChannel runs one operation on a channel of its own, since a refusal closes it.
func onChannel(conn *amqp.Connection, op func(ch *amqp.Channel) error) error {
	ch, err := conn.Channel()
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

// probes ask for the plugin, and whether the broker delays by instants, where that matters and is not known.
func (c *collector) probes(ctx context.Context) error {
	if c.cfg.Plugin != doctor.PluginUnused && c.snap.ExchangeTypes == nil && c.src.ProbePlugin != nil {
		there, err := c.src.ProbePlugin(ctx)
		switch {
		case err != nil:
			c.unseenf(doctor.AreaPlugin, "the probe for the plugin failed: %s", oneLine(err))
		case there:
			c.snap.ExchangeTypes = []string{"x-delayed-message"}
		default:
			c.snap.ExchangeTypes = []string{}
		}
	}
	if ctx.Err() == nil && c.cfg.WantsInstants() && c.src.ProbeInstants != nil {
		delays, err := c.src.ProbeInstants(ctx)
		if err != nil {
			c.unseenf(doctor.AreaInstants, "the probe for delays by an instant failed: %s", oneLine(err))
			return nil
		}
		c.snap.Instants = &delays
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// A management API that answers slowly must not keep Take from looking over AMQP.
const (
	inspectionPatience = 10 * time.Second // for all objects
	furtherPatience    = 6 * time.Second  // for all that is asked of it later
)

// ask returns the context of a request to the management API after the first, which ends when all of them together
// have taken longer than furtherPatience.
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

func (c *collector) objects(ctx context.Context) error {
	if c.src.Management != nil {
		c.inspected = time.Now()
		one, cancel := context.WithTimeout(ctx, inspectionPatience)
		defer cancel()
		var found observed.Broker
		err := c.src.Management.SameCluster(one, c.conn)
		if err == nil {
			found, err = c.src.Management.Inspect(one, c.cfg.Want)
		}
		if err != nil && one.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("it has not answered within %v", inspectionPatience)
		}
		if _, foreign := errors.AsType[*live.ClusterError](err); foreign {
			return err
		}
		if err == nil {
			c.snap.Live, c.managed = found, true
			return nil
		}
		c.unseenf(doctor.AreaManagement, "the management API %s; dead letters in transit, undescribed queues and blocked connections were not checked: %s", live.Failure(err), oneLine(err))
	} else {
		c.unseenf(doctor.AreaManagement, "without the management API (broker.management_url), dead letters in transit, undescribed queues and blocked connections cannot be checked")
	}
	found, err := live.NewAMQPInspector(c.conn).Inspect(ctx, c.cfg.Want)
	if isCode(err, amqp.AccessRefused) {
		c.unseenf(doctor.AreaArguments, "the user may not configure the objects, so only their existence was checked, not their arguments")
		found, err = c.passive(ctx)
	}
	c.snap.Live = found
	return err
}

// passive finds out what exists. Since RabbitMQ 4.3 that takes some right to an
// object; what the user may not look at is taken to be there.
func (c *collector) passive(ctx context.Context) (observed.Broker, error) {
	found := observed.Broker{Source: "AMQP, by passive declarations", Exchanges: map[string]observed.Exchange{}, Queues: map[string]observed.Queue{}}
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
			found.Exchanges[e.Name] = observed.Exchange{}
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
			found.Queues[name] = observed.Queue{Hidden: true}
		case !n.Missing:
			found.Queues[name] = observed.Queue{Messages: n.Ready, Consumers: n.Consumers, Unavailable: n.Unavailable}
		}
	}
	if hidden > 0 {
		c.unseenf(doctor.AreaObjects, "%d objects could not be seen; RabbitMQ %s requires some right to each", hidden, c.snap.Version)
	}
	return found, nil
}
