package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Metrics of cost.
const (
	metricHops      = "hops"
	metricCPU       = "broker's CPU"
	metricCPUPerHop = "broker's CPU per hop"
)

// cost finds out what a message costs the broker in processor time, from its
// publishing until it is in the destination queue, by layout and queue type. It
// is what the model for sizing a cluster rests on: unlike a rate, it does not
// depend on what else the machine does, or hardly.
func (r *run) cost(ctx context.Context, s *Scenario) error {
	for _, t := range r.o.QueueTypes {
		if err := r.costOf(ctx, s, t); err != nil {
			return fmt.Errorf("%s queues: %w", t, err)
		}
	}
	return nil
}

// costly is one way for messages to their destination.
type costly struct {
	c     *client
	kase  *Case
	delay func(i int) time.Duration
}

func (r *run) costOf(ctx context.Context, s *Scenario, t topology.QueueType) (err error) {
	group := string(t) + " queues"
	var ways []costly
	defer func() {
		for _, w := range ways {
			err = joined(err, w.c.close(ctx))
		}
	}()
	// Some are due while others are still sent.
	some := span{2 * time.Second, 6 * time.Second}
	byClock := dlx.BucketConfig{QueueType: t}
	checked := inTenths(dlx.LayoutClock, t)
	checked.TopicPermissions = true
	for _, w := range []struct {
		name  string
		cfg   dlx.BucketConfig
		delay func(i int) time.Duration
	}{
		{"no delay", byClock, func(int) time.Duration { return 0 }},
		{"clock layout, whole seconds", byClock, func(i int) time.Duration { return time.Duration(2+i%5) * time.Second }},
		{"clock layout", byClock, some.at},
		{"clock layout" + atTenths, inTenths(dlx.LayoutClock, t), some.at},
		{"clock layout" + atTenths + ", topic permissions", checked, some.at},
		{"hex layout" + atTenths, inTenths(dlx.LayoutHex, t), some.at},
		{"binary layout" + atTenths, inTenths(dlx.LayoutBinary, t), some.at},
	} {
		c, err := r.open(ctx, r.main, "cost-"+string(t)+strconv.Itoa(len(ways)), t, bucket(w.cfg))
		if err != nil {
			return err
		}
		ways = append(ways, costly{c, s.find(group, w.name, w.name == "no delay"), w.delay})
	}
	n := r.o.Messages
	add, done := r.o.Progress("cost, "+group, n*r.o.Repeats*len(ways))
	defer done()
	for range r.o.Repeats {
		var direct float64
		for i, w := range ways {
			each, hops, err := r.processorTime(ctx, w, n)
			if errors.Is(err, broker.ErrNotOurs) {
				return fmt.Errorf("%w: the processor time of a broker that was not started here is not known", errLeftOut)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", w.kase.Name, err)
			}
			add(n)
			w.kase.add(metricHops, "per message", hops)
			w.kase.add(metricCPU, "us per message", each)
			w.kase.add(metricRate, "messages/s per core of the broker", 1e6/each)
			if i == 0 {
				direct = each
			} else {
				w.kase.add(metricCPUPerHop, "us", (each-direct)/hops)
			}
		}
	}
	return nil
}

// processorTime sends n messages, and gives the broker's microseconds for each
// until all are in the destination queue, and the mean of their hops.
func (r *run) processorTime(ctx context.Context, w costly, n int) (each, hops float64, err error) {
	began := time.Now()
	before, err := processor(ctx, w.c.broker)
	if err != nil {
		return 0, 0, err
	}
	for sent := 0; sent < n; {
		msgs := make([]amqpx.Message, min(batchSize, n-sent))
		for i := range msgs {
			msgs[i] = amqpx.Message{Queue: w.c.queue, Delay: w.delay(sent + i), Body: body(r.o.Body, uint64(sent+i))}
			route, err := w.c.Strategy().Route(topology.Destination{Queue: w.c.queue}, msgs[i].Delay, 0)
			if err != nil {
				return 0, 0, err
			}
			hops += float64(route.Hops) / float64(n)
		}
		if err := w.c.SendBatch(ctx, msgs); err != nil {
			return 0, 0, err
		}
		sent += len(msgs)
	}
	if err := w.c.filled(ctx, n); err != nil {
		return 0, 0, err
	}
	after, err := processor(ctx, w.c.broker)
	took := time.Since(began)
	if err != nil {
		return 0, 0, err
	}
	if err := w.c.purge(); err != nil {
		return 0, 0, err
	}
	// What the broker uses without any message is not theirs.
	idle, err := idleProcessor(ctx, w.c.broker)
	return ((after - before) - idle*took.Seconds()) * 1e6 / float64(n), hops, err
}

// processor is the broker's processor time in seconds.
func processor(ctx context.Context, b *broker.Broker) (float64, error) {
	out, err := b.Ctl(ctx, "--silent", "eval", "element(1, erlang:statistics(runtime)).")
	if err != nil {
		return 0, err
	}
	ms, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		return 0, fmt.Errorf("the broker's processor time: %q: %w", out, err)
	}
	return ms / 1000, nil
}

// idleProcessor is how many seconds of processor time an idle broker takes in a
// second, its answers to this question included.
func idleProcessor(ctx context.Context, b *broker.Broker) (float64, error) {
	began := time.Now()
	before, err := processor(ctx, b)
	if err != nil {
		return 0, err
	}
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := processor(ctx, b)
	return (after - before) / time.Since(began).Seconds(), err
}

// filled waits until n messages are in the destination queue.
func (c *client) filled(ctx context.Context, n int) error {
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		q, err := ch.QueueDeclarePassive(c.queue, true, false, false, false, nil)
		if err != nil || q.Messages >= n {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
