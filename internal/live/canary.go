package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ErrInstantsIgnored is wrapped by every *InstantsIgnoredError.
var ErrInstantsIgnored = errors.New("the broker ignores the delivery time in the header and delivers messages immediately")

// InstantsIgnoredError reports a broker that ignores topology.HeaderInstant. Such a broker delivers a message
// immediately, although the header contains a future time.
type InstantsIgnoredError struct {
	Broker string // product and version, if the broker reported them
	Queue  string // the queue in which the message should have waited
}

func (e *InstantsIgnoredError) Error() string {
	return fmt.Sprintf("%s ignores the header %s in the queue %s: a message with a future time was delivered immediately; "+
		"the header needs RabbitMQ 4.4 or later on all nodes, and a quorum queue; use the strategy bucket, which needs neither",
		e.Broker, topology.HeaderInstant, e.Queue)
}

// Unwrap makes errors.Is(err, ErrInstantsIgnored) true.
func (e *InstantsIgnoredError) Unwrap() error { return ErrInstantsIgnored }

// Clock is the difference between the broker's clock and this process's clock. It is positive when the broker's clock
// is ahead and negative when it is behind. The true difference is between Low and High.
type Clock struct{ Low, High time.Duration }

// ClockError means that the clocks of a broker and of this process are too far apart to delay messages until a given
// time.
type ClockError struct {
	Clock

	Queue string // the queue whose leader's node has this clock
}

func (e *ClockError) Error() string {
	by, what := e.Low, "behind"
	if e.High < 0 {
		by, what = -e.High, "ahead of"
	}
	// Leave out the measured difference, because it changes with every measurement.
	return fmt.Sprintf("this machine's clock is at least %v %s the broker's (read in the queue %s), but only %v is allowed, because both have to use the same time; "+
		"synchronize the clocks (timedatectl set-ntp true), or use the strategy bucket",
		by.Truncate(MaxClockDifference), what, e.Queue, MaxClockDifference)
}

const (
	// MaxClockDifference is the largest accepted difference between the clocks of the broker and of this process if the
	// broker delays messages until a given time.
	MaxClockDifference = 10 * time.Second

	canaryWait    = 200 * time.Millisecond // how long the delayed message should wait
	canaryEvery   = 20 * time.Millisecond  // interval at which messages without the header are sent while the delayed one waits
	canaryTimeout = 10 * time.Second
	// canarySettle is how long to wait for a new binding to reach the other nodes of a cluster.
	canarySettle = 50 * time.Millisecond
	// canaryExpires is the x-expires of the temporary queues. If the process dies during a test, the broker deletes the
	// queue after this time, with any messages in it. If the queue disappeared together with the process, messages that
	// are still on their way to it would be parked.
	canaryExpires = time.Minute
)

// errNoCanary is the cause of a test that timed out without a result.
var errNoCanary = fmt.Errorf("test messages for delays until a given time did not arrive within %v; an alarm that blocks publishers can be the cause", canaryTimeout)

// Prove tests whether a broker delays messages until a given time in every queue on the given routes. It tests all
// queues concurrently, with messages that end in a temporary queue whose name begins with naming.CanaryQueue(prefix).
// The parameter canaryOf is the Canary method of an amqpx.InstantProber.
//
// For each queue, Prove publishes a message with a future time in its header, and then messages without the header. If
// the first message arrives first, the broker did not delay it, whatever the clocks show and however slow the broker
// is. If other messages overtake it, the broker did delay it.
//
// If the client's clock is behind the broker's, the time in the header may already be in the past for the broker. In
// that case Prove repeats the test with a time that is in the future by the broker's clock, which it reads from the
// x-death headers of the other messages. A test takes about 300 ms, or 1.3 s if the clocks disagree.
//
// The temporary queue is not exclusive. If it were exclusive, it would disappear together with the client, and messages
// that are still on their way to it would be parked.
//
// The error is an *InstantsIgnoredError, a *ClockError, or another error if there is no result. The returned Clock is
// that of the node whose clock is furthest ahead. If there are no routes, nothing is tested, and Prove returns no
// error.
func (b Broker) Prove(ctx context.Context, prefix string, canaryOf func(queue string) ([]topology.Binding, []topology.Route)) (Clock, error) {
	queue := naming.CanaryQueue(prefix) + rand.Text()
	bindings, routes := canaryOf(queue)
	if len(routes) == 0 {
		return Clock{}, nil
	}
	return b.prove(ctx, queue, routes, func(ch *amqp.Channel) error {
		for _, x := range bindings {
			if err := ch.QueueBind(queue, x.RoutingKey, x.Exchange, false, x.Arguments); err != nil {
				return fmt.Errorf("bind %s to %s: %w", queue, x.Exchange, err)
			}
		}
		return nil
	})
}

// ProbeInstants works like Prove, but through a temporary quorum queue that it declares itself, on a connection from
// dial. Use it before anything has been declared. It returns nil if new quorum queues delay messages until a given
// time, and an *InstantsIgnoredError if they do not. It ignores differences between the clocks.
func ProbeInstants(ctx context.Context, prefix string, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("testing whether the broker delays until a given time: %w", err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // the result is already known
	defer context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })()
	queue := naming.CanaryQueue(prefix) + rand.Text()
	holding := queue + ".held"
	routes := []topology.Route{{RoutingKey: holding, Queue: holding, InstantHeader: topology.HeaderInstant, Mandatory: true}}
	_, err = Broker{Conn: conn}.prove(ctx, queue, routes, func(ch *amqp.Channel) error {
		return declareCanary(ch, holding, amqp.Table{
			argument.QueueType: string(topology.Quorum), argument.MessageTTL: int64(0),
			argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: queue,
		})
	})
	if _, clock := errors.AsType[*ClockError](err); clock {
		return nil // the broker delays messages, and the client itself will report the wrong clock
	}
	if err == nil {
		_, err = channels.DeleteQueue(ctx, channels.New(conn), holding, false)
	}
	return err
}

func declareCanary(ch *amqp.Channel, name string, args amqp.Table) error {
	args[argument.Expires] = canaryExpires.Milliseconds()
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		return fmt.Errorf("declare %s, which tests whether the broker delays messages (the user needs the permissions to configure, write and read it): %w", name, err)
	}
	return nil
}

// prove runs a test on the given routes and returns the measured clock. The function lead makes the routes end in the
// temporary queue. prove deletes that queue when no more messages are on their way to it.
func (b Broker) prove(ctx context.Context, queue string, routes []topology.Route, lead func(ch *amqp.Channel) error) (Clock, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, canaryTimeout, errNoCanary)
	defer cancel()
	c := &canary{broker: "the broker"}
	if a, ok := b.Conn.(*amqp.Connection); ok {
		c.broker = noPlugin(a, nil).broker()
	}
	for _, r := range routes {
		c.routes = append(c.routes, &canaryRoute{route: r, clock: Clock{math.MinInt64, math.MaxInt64}, open: map[string]time.Time{}})
	}
	s := channels.New(b.Conn)
	defer s.Close()
	err := s.Do(ctx, func(ch *amqp.Channel) error {
		err := declareCanary(ch, queue, amqp.Table{argument.QueueType: string(topology.Classic)})
		if err == nil {
			err = lead(ch)
		}
		if err != nil {
			return err
		}
		c.ch = ch
		c.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
		c.returned = ch.NotifyReturn(make(chan amqp.Return, 16*len(c.routes))) // the first return ends the run, but later returns must not block the channel
		if c.arrivals, err = ch.Consume(queue, "", true, true, false, false, nil); err != nil {
			return err
		}
		verdict := c.run(ctx)
		if verdict == nil || errors.Is(verdict, ErrInstantsIgnored) {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		return verdict
	})
	if err != nil {
		return Clock{}, err
	}
	return c.clock()
}

// canary is a running test. It uses one channel.
type canary struct {
	broker   string
	routes   []*canaryRoute
	ch       *amqp.Channel
	arrivals <-chan amqp.Delivery
	returned <-chan amqp.Return
	closed   <-chan *amqp.Error
	number   int // number of messages sent
}

// canaryRoute is the state of the test for one queue.
type canaryRoute struct {
	route topology.Route
	clock Clock // the bounds of the clock difference so far

	open     map[string]time.Time // send times of the messages that have not arrived yet, by id
	held     string               // id of the delayed message; empty once it has arrived
	instant  time.Time            // the time in the delayed message's header
	overtook time.Time            // send time of the latest message that arrived before the delayed one
	ignored  bool
}

var errCanaryGone = errors.New("the canary's channel or queue is gone")

// run returns nil if all queues delay messages. When it returns nil or an *InstantsIgnoredError, no more messages are
// on their way.
func (c *canary) run(ctx context.Context) error {
	err := c.rounds(ctx)
	if (errors.Is(err, errCanaryGone) || errors.Is(err, amqp.ErrClosed)) && c.ch.IsClosed() {
		if why := <-c.closed; why != nil { // a missing permission to publish, for example, is reported only by closing the channel
			return fmt.Errorf("the canary's channel was closed: %w", why)
		}
	}
	return err
}

func (c *canary) rounds(ctx context.Context) error {
	if wait.For(ctx, canarySettle) != nil {
		return context.Cause(ctx)
	}
	// The first round sends no header. It checks that messages get through, and reads the broker's clock.
	if err := c.round(ctx, func(w *canaryRoute) error { return c.send(ctx, w, false) }); err != nil {
		return err
	}
	for _, w := range c.routes {
		if w.clock.High == math.MaxInt64 {
			return fmt.Errorf("the canary sent through queue %s arrived without an x-death entry for that queue; expected it to expire there", w.route.Queue)
		}
	}
	for _, cautious := range []bool{false, true} {
		err := c.round(ctx, func(w *canaryRoute) error {
			if cautious && !w.ignored {
				return nil
			}
			w.hold(cautious)
			if err := c.send(ctx, w, true); err != nil {
				return err
			}
			return c.send(ctx, w, false)
		})
		if err != nil {
			return err
		}
	}
	if i := slices.IndexFunc(c.routes, func(w *canaryRoute) bool { return w.ignored }); i >= 0 {
		return &InstantsIgnoredError{Broker: c.broker, Queue: c.routes[i].route.Queue}
	}
	return nil
}

// hold chooses the time for the header, in the near future by the broker's clock. That clock is known only to within a
// second, so if the two clocks may agree, hold uses this process's clock. If the message then arrives immediately, the
// time may already have been in the past for the broker. In that case the round is repeated with cautious set, and with
// a time that is certainly in the future.
func (w *canaryRoute) hold(cautious bool) {
	delay := canaryWait
	if cautious || w.clock.Low > 0 || w.clock.High < 0 {
		delay += w.clock.High
	}
	w.instant = time.UnixMilli(time.Now().Add(delay).UnixMilli())
	w.ignored, w.overtook = false, time.Time{}
}

func (c *canary) send(ctx context.Context, w *canaryRoute, delayed bool) error {
	c.number++
	id := strconv.Itoa(c.number)
	m := amqp.Publishing{MessageId: id, Type: "canary", DeliveryMode: amqp.Persistent}
	if delayed {
		m.Headers = amqp.Table{w.route.InstantHeader: w.instant.UnixMilli()}
		w.held = id
	}
	w.open[id] = time.Now()
	return c.ch.PublishWithContext(ctx, w.route.Exchange, w.route.RoutingKey, true, false, m)
}

// round calls begin for each route, and handles arriving messages until no more are on their way. While a delayed
// message waits, round sends others through the same queue.
func (c *canary) round(ctx context.Context, begin func(w *canaryRoute) error) error {
	for _, w := range c.routes {
		if err := begin(w); err != nil {
			return err
		}
	}
	tick := time.NewTicker(canaryEvery)
	defer tick.Stop()
	for slices.ContainsFunc(c.routes, func(w *canaryRoute) bool { return len(w.open) > 0 }) {
		select {
		case d, ok := <-c.arrivals:
			if !ok {
				return errCanaryGone
			}
			if err := c.arrived(d); err != nil {
				return err
			}
		case r, ok := <-c.returned:
			if !ok {
				return errCanaryGone
			}
			return fmt.Errorf("the broker returned the canary for %q in exchange %q as unroutable: %s", r.RoutingKey, r.Exchange, r.ReplyText)
		case <-tick.C:
			for _, w := range c.routes {
				if w.held == "" {
					continue
				}
				if err := c.send(ctx, w, false); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// arrived handles a message that has arrived in the temporary queue. It ignores duplicates.
func (c *canary) arrived(d amqp.Delivery) error {
	now := time.Now()
	for _, w := range c.routes {
		sent, mine := w.open[d.MessageId]
		if !mine {
			continue
		}
		delete(w.open, d.MessageId)
		if d.MessageId != w.held { // the message was sent without the header
			if w.held != "" {
				w.overtook = sent
			}
			if at, ok := expiredAt(d, w.route.Queue); ok { // the time in x-death is truncated to seconds
				w.clock.narrow(at.Sub(now), at.Add(time.Second).Sub(sent))
			}
			return nil
		}
		w.held = ""
		w.ignored = w.overtook.IsZero()
		if !w.ignored {
			// The broker's clock has reached the time in the header by now, and had not yet reached it when the message
			// that arrived before the delayed one was sent.
			w.clock.narrow(w.instant.Sub(now), w.instant.Sub(w.overtook))
		}
		return nil
	}
	if strings.Trim(d.MessageId, "0123456789") != "" {
		return fmt.Errorf("a message that is not a canary arrived in the canary queue: id %q, routing key %q", d.MessageId, d.RoutingKey)
	}
	return nil
}

// narrow tightens the bounds of the clock difference so that they agree with another reading.
func (c *Clock) narrow(low, high time.Duration) {
	c.Low, c.High = max(c.Low, low), min(c.High, high)
}

// expiredAt returns the time at which a message expired in a queue, according to the queue's node.
func expiredAt(d amqp.Delivery, queue string) (time.Time, bool) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, x := range deaths {
		death, _ := x.(amqp.Table)
		if at, ok := death["time"].(time.Time); ok && death["queue"] == queue {
			return at, true
		}
	}
	return time.Time{}, false
}

// clock returns the clock of the node that is furthest ahead, or an error if any node's clock is too far off.
func (c *canary) clock() (Clock, error) {
	furthest := c.routes[0].clock
	for _, w := range c.routes {
		if w.clock.Low > MaxClockDifference || w.clock.High < -MaxClockDifference {
			return Clock{}, &ClockError{Clock: w.clock, Queue: w.route.Queue}
		}
		if w.clock.Low > furthest.Low {
			furthest = w.clock
		}
	}
	return furthest, nil
}
