package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

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

func newCanary(conn Conn, routes []topology.Route) *canary {
	c := &canary{broker: "the broker"}
	if a, ok := conn.(*amqp.Connection); ok {
		c.broker = brokerName(a)
	}
	for _, r := range routes {
		c.ways = append(c.ways, &canaryWay{route: r, clock: Clock{math.MinInt64, math.MaxInt64}, open: map[string]time.Time{}})
	}
	return c
}

func brokerName(conn *amqp.Connection) string {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	return (&NoPluginError{Product: product, Version: version}).broker()
}

func (c *canary) listen(ch *amqp.Channel, queue string) (err error) {
	c.ch = ch
	c.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	c.returned = ch.NotifyReturn(make(chan amqp.Return, 16*len(c.ways))) // the first ends the run; none may wait to be read
	c.arrivals, err = ch.Consume(queue, "", true, true, false, false, nil)
	return err
}

// errCanaryGone means that a canary cannot go on.
var errCanaryGone = errors.New("the canary's channel or queue is gone")

// run is nil when all queues delay. Nothing is under way any more when it gives
// that, or ErrInstantsIgnored.
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
	for _, w := range c.ways {
		if w.ignored {
			return &InstantsIgnoredError{Broker: c.broker, Queue: w.route.Queue}
		}
	}
	return nil
}

// hold chooses an instant to come by the broker's clock, not far: what is known of
// that clock is a second wide. Where the clocks may agree it is chosen by this
// process's; what then comes at once may only be late, and is tried again with an
// instant that is surely to come.
func (w *canaryWay) hold(cautious bool) {
	delay := canaryWait
	if cautious || !w.clock.agrees() {
		delay += w.clock.High
	}
	w.instant = time.UnixMilli(time.Now().Add(delay).UnixMilli())
	w.ignored, w.overtook = false, time.Time{}
}

// agrees reports whether the clocks may be the same.
func (c Clock) agrees() bool { return c.Low <= 0 && c.High >= 0 }

// send sends a message, one that should wait or one that should not.
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
	for c.underWay() {
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

func (c *canary) underWay() bool {
	for _, w := range c.ways {
		if len(w.open) > 0 {
			return true
		}
	}
	return false
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
		if d.MessageId != w.held {
			w.control(d, sent, now)
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

// control takes in a message that did not wait.
func (w *canaryWay) control(d amqp.Delivery, sent, now time.Time) {
	if w.held != "" {
		w.overtook = sent
	}
	if at, ok := expiredAt(d, w.route.Queue); ok { // in whole seconds
		w.clock.narrow(at.Sub(now), at.Add(time.Second).Sub(sent))
	}
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

// clock is that of the node that is furthest ahead, or the error of one that is too
// far away.
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
