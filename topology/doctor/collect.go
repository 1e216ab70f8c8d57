package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/mgmt"
)

// Source is how Collect reaches a broker.
type Source struct {
	// Dial opens a connection, which Collect closes. Required.
	Dial func(ctx context.Context) (*amqp.Connection, error)
	// ConnectionName is the beginning of the connection_name that Dial's
	// connections have and no others, so that they are found in the management
	// API; empty if they have none.
	ConnectionName string
	// Management reads the management API; nil for none.
	Management *mgmt.Inspector
	// ProbePlugin tells whether the broker has the x-delayed-message plugin. It is
	// asked where the configuration uses it and the management API does not tell;
	// nil to leave it open.
	ProbePlugin func(ctx context.Context) (bool, error)
	// Peek is how many parked messages are looked at, which puts them back into
	// their queue, at most 100. Default 0, because RabbitMQ before 4.3 counts it
	// as a delivery; see Collect.
	Peek int
	// Now is this process's clock, default time.Now.
	Now func() time.Time
}

// closeTimeout bounds the goodbye to the broker.
const closeTimeout = 2 * time.Second

// Collect takes a snapshot of a broker. It declares nothing that stays, sends
// nothing to a queue of others and takes nothing out: permissions are found out
// by requests that are refused for another reason when the permission is there,
// and the clock by messages through exclusive queues of its own. Over AMQP alone,
// a user who may configure the objects has those that exist declared again as
// they are described.
//
// With Peek, parked messages are got and put back by the management API.
// RabbitMQ 4.0 to 4.2 counts that as a delivery and drops a message after the
// twentieth, so Collect does not peek there.
//
// It fails only when it cannot connect, when the management API is another
// broker's (*mgmt.ClusterError), or when the context ends; what else it cannot see
// it says in Snapshot.Unseen.
func Collect(ctx context.Context, cfg Config, src Source) (Snapshot, error) {
	if src.Now == nil {
		src.Now = time.Now
	}
	c := &collector{cfg: cfg.WithDefaults(), src: src, clocks: map[string][]reading{}}
	began := src.Now()
	conn, hangUp, err := c.dial(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer hangUp()
	c.conn, c.dialed, c.connected = conn, began, src.Now()
	c.snap.Version, _ = conn.Properties["version"].(string)

	for _, step := range []func(context.Context) error{c.live, c.management, c.plugin, c.permissions, c.publishing, c.routes, c.peek} {
		if err := step(ctx); err != nil {
			return Snapshot{}, err
		}
		if ctx.Err() != nil {
			return Snapshot{}, context.Cause(ctx)
		}
	}
	c.snap.Clock = estimate(c.clocks)
	return c.snap, nil
}

type collector struct {
	cfg  Config
	src  Source
	snap Snapshot

	conn              *amqp.Connection
	dialed, connected time.Time // before and after conn was dialed
	managed           bool      // the management API answers
	clocks            map[string][]reading
}

// dial connects; the connection ends with the context, because the client
// library cannot interrupt what waits for the broker's answer.
func (c *collector) dial(ctx context.Context) (conn *amqp.Connection, hangUp func(), err error) {
	conn, err = c.src.Dial(ctx)
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
			_ = conn.CloseDeadline(time.Now().Add(closeTimeout)) // the work is done
		} else {
			<-done
		}
	}, nil
}

func (c *collector) notef(format string, args ...any) {
	c.snap.Notes = append(c.snap.Notes, fmt.Sprintf(format, args...))
}

func (c *collector) unseenf(a Area, format string, args ...any) {
	c.snap.Unseen = append(c.snap.Unseen, Unseen{a, fmt.Sprintf(format, args...)})
}

// live reads the objects, by the best way there is.
func (c *collector) live(ctx context.Context) error {
	if c.src.Management != nil {
		live, err := c.inspect(ctx)
		if _, foreign := errors.AsType[*mgmt.ClusterError](err); foreign {
			return err
		}
		if err == nil {
			c.snap.Live, c.managed = live, true
			return nil
		}
		c.unseenf(AreaManagement, "the management API gave no answer, so that dead letters under way, queues that nothing describes and blocked connections stay unknown: %s", oneLine(err))
	} else {
		c.unseenf(AreaManagement, "without the management API dead letters under way, queues that nothing describes and blocked connections stay unknown")
	}
	live, err := topology.NewAMQPInspector(c.conn).Inspect(ctx, c.cfg.Want)
	if refused(err) {
		c.unseenf(AreaArguments, "the user may not configure the objects, so only whether they exist was checked, not how they are")
		live, err = c.passive(ctx)
	}
	c.snap.Live = live
	return err
}

// inspect reads the management API, if it is this broker's.
func (c *collector) inspect(ctx context.Context) (topology.Live, error) {
	name, _ := c.conn.Properties["cluster_name"].(string)
	if err := c.src.Management.SameCluster(ctx, name); err != nil {
		return topology.Live{}, err
	}
	return c.src.Management.Inspect(ctx, c.cfg.Want)
}

// passive finds out what exists. Since RabbitMQ 4.3 that takes some right to an
// object; what the user may not look at is taken to be there.
func (c *collector) passive(ctx context.Context) (topology.Live, error) {
	live := topology.Live{Source: "AMQP, by passive declarations", Exchanges: map[string]topology.LiveExchange{}, Queues: map[string]topology.LiveQueue{}}
	hidden := 0
	for _, e := range c.cfg.Want.Exchanges {
		err := c.try(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
		})
		switch {
		case refused(err):
			hidden++
			fallthrough
		case err == nil:
			live.Exchanges[e.Name] = topology.LiveExchange{}
		case !isCode(err, amqp.NotFound):
			return live, fmt.Errorf("exchange %s: %w", e.Name, err)
		}
	}
	for _, q := range c.cfg.Want.Queues {
		var found topology.LiveQueue
		err := c.try(func(ch *amqp.Channel) error {
			state, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			found.Messages, found.Consumers = int64(state.Messages), int64(state.Consumers)
			return err
		})
		switch {
		case refused(err):
			hidden++
			fallthrough
		case err == nil:
			live.Queues[q.Name] = found
		case !isCode(err, amqp.NotFound):
			return live, fmt.Errorf("queue %s: %w", q.Name, err)
		}
		if ctx.Err() != nil {
			return live, context.Cause(ctx)
		}
	}
	if hidden > 0 {
		c.unseenf(AreaObjects, "%s could not be looked at, for which RabbitMQ %s wants some right to them", counted(hidden, "object", "objects"), c.snap.Version)
	}
	return live, nil
}

// try runs one operation on a channel of its own, since a refusal closes it.
func (c *collector) try(op func(ch *amqp.Channel) error) error { return onChannel(c.conn, op) }

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

func refused(err error) bool { return isCode(err, amqp.AccessRefused) }

// plugin asks for the plugin where it matters and is not known.
func (c *collector) plugin(ctx context.Context) error {
	if c.cfg.Plugin == PluginUnused || c.snap.ExchangeTypes != nil || c.src.ProbePlugin == nil {
		return nil
	}
	there, err := c.src.ProbePlugin(ctx)
	switch {
	case err != nil:
		c.unseenf(AreaPlugin, "the probe for the plugin failed: %s", oneLine(err))
	case there:
		c.snap.ExchangeTypes = []string{"x-delayed-message"}
	default:
		c.snap.ExchangeTypes = []string{}
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// permissions finds out which of the needed permissions the user lacks. Every
// request here is refused or does nothing, whatever the permissions.
func (c *collector) permissions(ctx context.Context) error {
	for _, n := range needs(c.cfg) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n.Name == defaultExchange {
			continue // only publishing tells
		}
		denied, err := c.denied(n)
		if err != nil {
			return fmt.Errorf("looking for the permission to %s %s %s: %w", n.Operation, n.Kind, n.Name, err)
		}
		if denied != (Access{}) && !slices.Contains(c.snap.Denied, denied) {
			c.snap.Denied = append(c.snap.Denied, denied)
		}
	}
	return nil
}

// noBinding is a routing key that no binding has.
const noBinding = "rabbitdelay.doctor.no-such-binding"

// denied asks for one permission. The broker checks it before it looks at
// arguments that are wrong on purpose, or for a binding that is not there.
func (c *collector) denied(n need) (Access, error) {
	err := c.try(func(ch *amqp.Channel) error {
		switch {
		case n.binding.Queue != "":
			return ch.QueueUnbind(n.binding.Queue, noBinding, n.Name, nil)
		case n.binding.ToExchange != "":
			return ch.ExchangeUnbind(n.binding.ToExchange, noBinding, n.Name, false, nil)
		case n.Kind == topology.KindQueue && n.Operation == "configure":
			_, err := ch.QueueDeclare(n.Name, true, false, false, false, amqp.Table{topology.ArgDeadLetterExchange: int32(1)})
			return err
		case n.Kind == topology.KindQueue:
			_, err := ch.Consume(n.Name, "", false, false, false, false, amqp.Table{"x-priority": "none"})
			return err
		case n.Operation == "configure":
			return ch.ExchangeDeclare(n.Name, amqp.ExchangeTopic, true, false, false, false, amqp.Table{topology.ArgAlternateExchange: int32(1)})
		default: // the destination's permission comes first
			source := "amq.topic"
			if n.Name == source {
				source = "amq.direct"
			}
			return ch.ExchangeUnbind(n.Name, noBinding, source, false, nil)
		}
	})
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return Access{}, nil
	case !ok || c.conn.IsClosed():
		return Access{}, err
	case e.Code != amqp.AccessRefused:
		return Access{}, nil
	case about(e, n.Kind, n.Name):
		return n.Access, nil
	case n.binding.Queue != "" && about(e, topology.KindQueue, n.binding.Queue):
		return Access{Operation: "write", Kind: topology.KindQueue, Name: n.binding.Queue, Role: n.Role}, nil
	case n.binding.ToExchange != "" && about(e, topology.KindExchange, n.binding.ToExchange):
		return Access{Operation: "write", Kind: topology.KindExchange, Name: n.binding.ToExchange, Role: n.Role}, nil
	}
	return Access{}, nil
}

// about tells whether a refusal is about an object. The broker cuts its text at
// 255 bytes.
func about(e *amqp.Error, kind topology.Kind, name string) bool {
	_, rest, ok := strings.Cut(e.Reason, "access to "+string(kind)+" '")
	return ok && (strings.HasPrefix(rest, name+"'") || strings.HasPrefix(name, rest))
}
