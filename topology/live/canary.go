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

// InstantsIgnoredError reports a broker that hands on at once messages that carry
// topology.HeaderInstant with an instant to come.
type InstantsIgnoredError struct {
	Broker string // product and version, as far as it gave them
	Queue  string // in which the message should have waited
}

func (e *InstantsIgnoredError) Error() string {
	return fmt.Sprintf("%s ignores the header %s in the queue %s: a message with an instant to come was handed on at once; "+
		"that takes RabbitMQ 4.4 or later on all nodes, and a quorum queue; use the strategy bucket, which needs neither",
		e.Broker, topology.HeaderInstant, e.Queue)
}

// Unwrap makes errors.Is(err, ErrInstantsIgnored) true.
func (e *InstantsIgnoredError) Unwrap() error { return ErrInstantsIgnored }

// Clock is how much the broker's clock is ahead of this process's. It is negative
// when it is behind. The true difference lies between Low and High.
type Clock struct{ Low, High time.Duration }

// ClockError means that the clocks of a broker and this process are too far apart for delays by an instant.
type ClockError struct {
	Clock

	Queue string // on whose leader's node the clock was read
}

func (e *ClockError) Error() string {
	by, what := e.Low, "behind"
	if e.High < 0 {
		by, what = -e.High, "ahead of"
	}
	// Not what was measured, which is another figure each time.
	return fmt.Sprintf("this machine's clock is at least %v %s the broker's (read in the queue %s), and at most %v is tolerated, because an instant means the same to both; "+
		"set the clocks (timedatectl set-ntp true), or use the strategy bucket",
		by.Truncate(MaxClockDifference), what, e.Queue, MaxClockDifference)
}

const (
	// MaxClockDifference is how far the clocks of the broker and this process may be
	// apart for delays by an instant.
	MaxClockDifference = 10 * time.Second

	canaryWait    = 200 * time.Millisecond // that a message is to wait
	canaryEvery   = 20 * time.Millisecond  // a message that does not wait is sent beside it
	canaryTimeout = 10 * time.Second
	// canarySettle is until other nodes of a cluster, too, route by a new binding.
	canarySettle = 50 * time.Millisecond
	// canaryExpires deletes what a process leaves behind that ends meanwhile, with the
	// messages that come there yet, which else would be parked.
	canaryExpires = time.Minute
)

// errNoCanary is why a canary has no verdict.
var errNoCanary = fmt.Errorf("messages that should prove that the broker delays by an instant did not come back within %v, as they would not while an alarm blocks publishers", canaryTimeout)

// Prove finds out whether a broker delays by an instant in each of the queues that ways leads through, all at
// once, by messages to a temporary queue below naming.CanaryQueue(prefix). ways is what amqpx.Canary has.
//
// A message with an instant to come is published, and behind it messages without, all through the same queue.
// Where the first comes out first, it was not delayed, whatever any clock says and however slow the broker is;
// where the others come first, it waited. A client's clock that is behind may make an instant to come one of
// the past: it is tried again with one that is to come by the broker's clock, which the x-death of the others
// tells. The queue is not exclusive, because what comes after the client's end would be parked. It takes some
// 300 ms, and 1.3 s where the clocks disagree.
//
// The errors are *InstantsIgnoredError, *ClockError, and others when there is no verdict. The clock is that of
// the node that is furthest ahead. Without routes there is nothing to prove.
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

// ProbeInstants is Prove with a temporary quorum queue of its own, on a connection
// that dial makes, for callers that have declared nothing yet. It returns nil where new
// quorum queues delay by an instant, and an *InstantsIgnoredError where they do not.
func ProbeInstants(ctx context.Context, prefix string, dial func(ctx context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probing for delays by an instant: %w", err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // the answer is there
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
		return nil // it delays; the client says what is wrong with the clock
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

// prove runs a canary through routes, which lead makes lead to a temporary queue, and deletes the queue when
// nothing is on its way there any more.
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
		c.returned = ch.NotifyReturn(make(chan amqp.Return, 16*len(c.ways))) // the first ends the run; none may wait to be read
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

// canary is one proof under way, on one channel.
type canary struct {
	broker   string
	ways     []*canaryWay
	ch       *amqp.Channel
	arrivals <-chan amqp.Delivery
	returned <-chan amqp.Return
	closed   <-chan *amqp.Error
	number   int // of messages sent
}

// canaryWay is the way through one queue.
type canaryWay struct {
	route topology.Route
	clock Clock // what is known of it so far

	open     map[string]time.Time // when the messages under way were sent, by id
	held     string               // the id of the one that should wait; empty when it has come
	instant  time.Time            // until which
	overtook time.Time            // when the latest was sent that has come before it
	ignored  bool
}

var errCanaryGone = errors.New("the canary's channel or queue is gone")

// run is nil when all queues delay. Nothing is under way any more when it gives that, or ErrInstantsIgnored.
func (c *canary) run(ctx context.Context) error {
	err := c.rounds(ctx)
	if (errors.Is(err, errCanaryGone) || errors.Is(err, amqp.ErrClosed)) && c.ch.IsClosed() {
		if why := <-c.closed; why != nil { // such as a missing right to publish, which has no other answer
			return fmt.Errorf("the canary's channel was closed: %w", why)
		}
	}
	return err
}

func (c *canary) rounds(ctx context.Context) error {
	if wait.For(ctx, canarySettle) != nil {
		return context.Cause(ctx)
	}
	// At first without an instant: that the way is open, and what time it is there.
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

// hold chooses an instant to come by the broker's clock, not far: what is known of that clock is a second wide.
// Where the clocks may agree it is chosen by this process's; what then comes at once may only be late, and is
// tried again with an instant that is surely to come.
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

// round begins something on each way, and takes in what arrives until nothing is
// under way. While a message waits, others are sent beside it.
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

// arrived takes in a message. One that comes a second time counts once.
func (c *canary) arrived(d amqp.Delivery) error {
	now := time.Now()
	for _, w := range c.ways {
		sent, mine := w.open[d.MessageId]
		if !mine {
			continue
		}
		delete(w.open, d.MessageId)
		if d.MessageId != w.held { // it did not wait
			if w.held != "" {
				w.overtook = sent
			}
			if at, ok := expiredAt(d, w.route.Queue); ok { // in whole seconds
				w.clock.narrow(at.Sub(now), at.Add(time.Second).Sub(sent))
			}
			return nil
		}
		w.held = ""
		w.ignored = w.overtook.IsZero()
		if !w.ignored {
			// It waited behind what was sent before its instant, and came after it.
			w.clock.narrow(w.instant.Sub(now), w.instant.Sub(w.overtook))
		}
		return nil
	}
	if strings.Trim(d.MessageId, "0123456789") != "" {
		return fmt.Errorf("a message that is no canary came to its queue: id %q, routing key %q", d.MessageId, d.RoutingKey)
	}
	return nil
}

// narrow adds what one look at the clock says.
func (c *Clock) narrow(low, high time.Duration) {
	c.Low, c.High = max(c.Low, low), min(c.High, high)
}

// expiredAt is when a message expired in a queue, by the queue's clock.
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

// clock is that of the node that is furthest ahead, or the error of one that is too far away.
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
