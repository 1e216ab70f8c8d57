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

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// ErrInstantsIgnored is wrapped by every *InstantsIgnoredError.
var ErrInstantsIgnored = errors.New("the broker does not delay by an instant in a header")

// InstantsIgnoredError reports a broker that ignores topology.HeaderInstant. It hands a message on immediately
// although the instant in the header is in the future.
type InstantsIgnoredError struct {
	Broker string // product and version, as far as the broker reported them
	Queue  string // the queue in which the message should have waited
}

func (e *InstantsIgnoredError) Error() string {
	return fmt.Sprintf("%s ignores the header %s in the queue %s: a message with an instant to come was handed on at once; "+
		"that takes RabbitMQ 4.4 or later on all nodes, and a quorum queue; use the strategy bucket, which needs neither",
		e.Broker, topology.HeaderInstant, e.Queue)
}

// Unwrap makes errors.Is(err, ErrInstantsIgnored) true.
func (e *InstantsIgnoredError) Unwrap() error { return ErrInstantsIgnored }

// Clock is the difference between the broker's clock and this process's clock. It is positive when the broker's clock
// is ahead and negative when it is behind. The true difference is between Low and High.
type Clock struct{ Low, High time.Duration }

// ClockError means that the clocks of a broker and this process are too far apart to delay messages by an instant.
type ClockError struct {
	Clock

	Queue string // the queue whose leader's node has this clock
}

func (e *ClockError) Error() string {
	by, what := e.Low, "behind"
	if e.High < 0 {
		by, what = -e.High, "ahead of"
	}
	// The message leaves out the measured difference because it changes with every measurement.
	return fmt.Sprintf("this machine's clock is at least %v %s the broker's (read in the queue %s), and at most %v is tolerated, because an instant means the same to both; "+
		"set the clocks (timedatectl set-ntp true), or use the strategy bucket",
		by.Truncate(MaxClockDifference), what, e.Queue, MaxClockDifference)
}

const (
	// MaxClockDifference is the largest difference between the clocks of the broker and this process that is accepted
	// for delays by an instant.
	MaxClockDifference = 10 * time.Second

	canaryWait    = 200 * time.Millisecond // how long the delayed message should wait
	canaryEvery   = 20 * time.Millisecond  // interval at which undelayed messages are sent while the delayed one waits
	canaryTimeout = 10 * time.Second
	// canarySettle is how long a new binding takes to reach the other nodes of a cluster.
	canarySettle = 50 * time.Millisecond
	// canaryExpires is the x-expires of the temporary queues. If the process dies during a proof, the broker deletes
	// its queue after this time, together with any messages that still arrive there. Without the queue those messages
	// would be parked.
	canaryExpires = time.Minute
)

// errNoCanary is the cause of a proof that timed out without a verdict.
var errNoCanary = fmt.Errorf("messages that should prove that the broker delays by an instant did not come back within %v, as they would not while an alarm blocks publishers", canaryTimeout)

// Prove checks that a broker delays messages by an instant in every queue that is reached through ways. It checks all
// of them concurrently, with messages that end in a temporary queue whose name begins with
// naming.CanaryQueue(prefix). The argument ways has the signature of amqpx.Canary.
//
// Prove publishes a message with an instant in the future, and then messages without an instant through the same
// queue. If the first message comes out first, it was not delayed, regardless of any clock and of the broker's speed.
// If the other messages overtake it, it waited. When the client's clock is behind, its future instant may already be
// in the past for the broker. In that case Prove tries again with an instant that is in the future by the broker's
// clock, which it reads from the x-death headers of the other messages. The queue is not exclusive, because messages
// that arrive after the client has gone would be parked if the queue went with it. A proof takes about 300 ms, or 1.3
// s if the clocks disagree.
//
// The error is an *InstantsIgnoredError, a *ClockError, or another error if there is no verdict. The returned Clock
// is that of the node that is furthest ahead. Without routes there is nothing to prove, and Prove returns no error.
func (b Broker) Prove(ctx context.Context, prefix string, ways func(queue string) ([]topology.Binding, []topology.Route)) (Clock, error) {
	queue := naming.CanaryQueue(prefix) + rand.Text()
	bindings, routes := ways(queue)
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
// dial. Use it before anything has been declared. It returns nil if new quorum queues delay by an instant, and an
// *InstantsIgnoredError if they do not. It ignores the difference of the clocks.
func ProbeInstants(ctx context.Context, prefix string, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probing for delays by an instant: %w", err)
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
		return nil // the broker does delay, and the client reports the wrong clock itself
	}
	if err == nil {
		_, err = deleteQueue(ctx, &session{conn: conn}, holding, false)
	}
	return err
}

func declareCanary(ch *amqp.Channel, name string, args amqp.Table) error {
	args[argument.Expires] = canaryExpires.Milliseconds()
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		return fmt.Errorf("declare %s, which the proof that the broker delays needs (with the rights to configure, write to and read it): %w", name, err)
	}
	return nil
}

// prove runs a canary through routes and returns the measured clock. The function lead makes the routes end in the
// temporary queue. prove deletes that queue once no message is on its way to it.
func (b Broker) prove(ctx context.Context, queue string, routes []topology.Route, lead func(ch *amqp.Channel) error) (Clock, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, canaryTimeout, errNoCanary)
	defer cancel()
	c := &canary{broker: "the broker"}
	if a, ok := b.Conn.(*amqp.Connection); ok {
		c.broker = noPlugin(a, nil).broker()
	}
	for _, r := range routes {
		c.ways = append(c.ways, &canaryWay{route: r, clock: Clock{math.MinInt64, math.MaxInt64}, open: map[string]time.Time{}})
	}
	s := &session{conn: b.Conn}
	defer s.close()
	err := s.do(ctx, func(ch *amqp.Channel) error {
		err := declareCanary(ch, queue, amqp.Table{argument.QueueType: string(topology.Classic)})
		if err == nil {
			err = lead(ch)
		}
		if err != nil {
			return err
		}
		c.ch = ch
		c.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
		c.returned = ch.NotifyReturn(make(chan amqp.Return, 16*len(c.ways))) // the first return ends the run, and none may block the channel
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

// canary is one running proof on one channel.
type canary struct {
	broker   string
	ways     []*canaryWay
	ch       *amqp.Channel
	arrivals <-chan amqp.Delivery
	returned <-chan amqp.Return
	closed   <-chan *amqp.Error
	number   int // number of messages sent
}

// canaryWay is the state of the proof for one queue.
type canaryWay struct {
	route topology.Route
	clock Clock // what has been measured of the clock so far

	open     map[string]time.Time // send times of the messages that have not come back, by id
	held     string               // id of the delayed message; empty once it has come back
	instant  time.Time            // the delayed message's instant
	overtook time.Time            // send time of the latest message that came back before the delayed one
	ignored  bool
}

var errCanaryGone = errors.New("the canary's channel or queue is gone")

// run returns nil if all queues delay. When it returns nil or ErrInstantsIgnored, no message is on its way any more.
func (c *canary) run(ctx context.Context) error {
	err := c.rounds(ctx)
	if (errors.Is(err, errCanaryGone) || errors.Is(err, amqp.ErrClosed)) && c.ch.IsClosed() {
		if why := <-c.closed; why != nil { // for example, a missing permission to publish, which the broker reports in no other way
			return fmt.Errorf("the canary's channel was closed: %w", why)
		}
	}
	return err
}

func (c *canary) rounds(ctx context.Context) error {
	if wait.For(ctx, canarySettle) != nil {
		return context.Cause(ctx)
	}
	// The first round has no instant. It checks that messages get through, and reads the broker's clock.
	if err := c.round(ctx, func(w *canaryWay) error { return c.send(ctx, w, false) }); err != nil {
		return err
	}
	for _, w := range c.ways {
		if w.clock.High == math.MaxInt64 {
			return fmt.Errorf("the canary through %s has no x-death of that queue; expected one that expired in it", w.route.Queue)
		}
	}
	for _, cautious := range []bool{false, true} {
		err := c.round(ctx, func(w *canaryWay) error {
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
	if i := slices.IndexFunc(c.ways, func(w *canaryWay) bool { return w.ignored }); i >= 0 {
		return &InstantsIgnoredError{Broker: c.broker, Queue: c.ways[i].route.Queue}
	}
	return nil
}

// hold chooses an instant in the near future by the broker's clock, which is only known to within a second. If the
// clocks may agree, it uses this process's clock. A message that then comes back immediately may only have been sent
// too late, so the round is repeated with cautious set, and an instant that is certainly in the future.
func (w *canaryWay) hold(cautious bool) {
	delay := canaryWait
	if cautious || w.clock.Low > 0 || w.clock.High < 0 {
		delay += w.clock.High
	}
	w.instant = time.UnixMilli(time.Now().Add(delay).UnixMilli())
	w.ignored, w.overtook = false, time.Time{}
}

func (c *canary) send(ctx context.Context, w *canaryWay, delayed bool) error {
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

// round calls begin for each way, and handles arriving messages until none is on its way. While a delayed message
// waits, round sends others through the same queue.
func (c *canary) round(ctx context.Context, begin func(w *canaryWay) error) error {
	for _, w := range c.ways {
		if err := begin(w); err != nil {
			return err
		}
	}
	tick := time.NewTicker(canaryEvery)
	defer tick.Stop()
	for slices.ContainsFunc(c.ways, func(w *canaryWay) bool { return len(w.open) > 0 }) {
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
			return fmt.Errorf("the canary for %q in exchange %q came back: %s", r.RoutingKey, r.Exchange, r.ReplyText)
		case <-tick.C:
			for _, w := range c.ways {
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

// arrived handles a message that has come back. It ignores duplicates.
func (c *canary) arrived(d amqp.Delivery) error {
	now := time.Now()
	for _, w := range c.ways {
		sent, mine := w.open[d.MessageId]
		if !mine {
			continue
		}
		delete(w.open, d.MessageId)
		if d.MessageId != w.held { // it was sent without an instant
			if w.held != "" {
				w.overtook = sent
			}
			if at, ok := expiredAt(d, w.route.Queue); ok { // x-death has whole seconds
				w.clock.narrow(at.Sub(now), at.Add(time.Second).Sub(sent))
			}
			return nil
		}
		w.held = ""
		w.ignored = w.overtook.IsZero()
		if !w.ignored {
			// It came back after a message that was sent before its instant, so it did wait.
			w.clock.narrow(w.instant.Sub(now), w.instant.Sub(w.overtook))
		}
		return nil
	}
	if strings.Trim(d.MessageId, "0123456789") != "" {
		return fmt.Errorf("a message that is no canary came to its queue: id %q, routing key %q", d.MessageId, d.RoutingKey)
	}
	return nil
}

// narrow intersects the clock difference with the bounds from one more reading.
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
	furthest := c.ways[0].clock
	for _, w := range c.ways {
		if w.clock.Low > MaxClockDifference || w.clock.High < -MaxClockDifference {
			return Clock{}, &ClockError{Clock: w.clock, Queue: w.route.Queue}
		}
		if w.clock.Low > furthest.Low {
			furthest = w.clock
		}
	}
	return furthest, nil
}
