package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Sizes of the publish scenario.
const (
	batchSize      = 5000    // of SendBatch where it is not what is measured
	maxStream      = 200_000 // messages of one SendBatch, for the memory
	sendGoroutines = 64
)

// halfAnHour is the delay most asked for: one hop.
func halfAnHour(int) time.Duration { return 30 * time.Minute }

// anyDelay is in one of 50 queues: nothing comes out during a repeat.
func anyDelay(i int) time.Duration {
	return span{10 * time.Minute, time.Hour - time.Millisecond}.at(i)
}

// publish compares confirmed publishing through the bucket strategy with raw
// pipelined publishing into a plain queue of the same type.
func (r *run) publish(ctx context.Context, s *Scenario) error {
	for _, t := range r.o.QueueTypes {
		if err := r.publishInto(ctx, s, t); err != nil {
			return fmt.Errorf("%s queues: %w", t, err)
		}
	}
	return nil
}

func (r *run) publishInto(ctx context.Context, s *Scenario, t topology.QueueType) (err error) {
	c, err := r.open(ctx, r.main, "publish-"+string(t), t, clock(t))
	if err != nil {
		return err
	}
	defer func() { err = joined(err, c.close(ctx)) }()
	coarse, err := r.open(ctx, r.main, "publish-100ms-"+string(t), t, bucket(inTenths(dlx.LayoutClock, t)))
	if err != nil {
		return err
	}
	defer func() { err = joined(err, coarse.close(ctx)) }()
	plain, err := c.plain("plain", t)
	if err != nil {
		return err
	}
	raw, err := newRawPublisher(c.conn, r.o.Body, plain)
	if err != nil {
		return err
	}
	spread, err := r.spread(c, t)
	if err != nil {
		return err
	}
	n := r.o.Messages
	group := string(t) + " queues"
	const (
		one      = "raw client, one goroutine, 1024 in flight"
		many     = "raw client, 64 goroutines"
		toMany   = "raw client, 64 goroutines, 50 queues"
		batchAny = "SendBatch, one goroutine, 10-60 min"
		sendAny  = "Send, 64 goroutines, 10-60 min"
	)
	works := []struct {
		name string
		raw  string // beside which it is measured; empty: it is itself a baseline
		do   func(advance func(int)) error
	}{
		{one, "", func(advance func(int)) error {
			return raw.pipelined(ctx, n, amqpx.DefaultMaxInFlight, advance)
		}},
		{"SendBatch, one goroutine, 30 min", one, func(advance func(int)) error {
			return c.sendBatches(ctx, n, n, r.o.Body, halfAnHour, advance)
		}},
		{batchAny, one, func(advance func(int)) error {
			return c.sendBatches(ctx, n, n, r.o.Body, anyDelay, advance)
		}},
		{batchAny + atTenths, "", func(advance func(int)) error {
			return coarse.sendBatches(ctx, n, n, r.o.Body, anyDelay, advance)
		}},
		{many, "", func(advance func(int)) error {
			return raw.shared(ctx, n, sendGoroutines, advance)
		}},
		{"Send, 64 goroutines, 30 min", many, func(advance func(int)) error {
			return c.sendShared(ctx, n, r.o.Body, halfAnHour, advance)
		}},
		{sendAny, many, func(advance func(int)) error {
			return c.sendShared(ctx, n, r.o.Body, anyDelay, advance)
		}},
		{sendAny + atTenths, "", func(advance func(int)) error {
			return coarse.sendShared(ctx, n, r.o.Body, anyDelay, advance)
		}},
		{toMany, "", func(advance func(int)) error {
			return spread.shared(ctx, n, sendGoroutines, advance)
		}},
	}
	add, done := r.o.Progress("publish, "+group, n*r.o.Repeats*len(works))
	defer done()
	var variants []variant
	for _, w := range works {
		kase := s.find(group, w.name, w.raw == "")
		variants = append(variants, variant{func(context.Context) error {
			k, err := measured(func() error { return w.do(add) })
			if err != nil {
				return err
			}
			kase.record(k, n)
			return errors.Join(c.purge(), coarse.purge())
		}})
	}
	if err := interleave(ctx, r.o.Repeats, variants); err != nil {
		return err
	}
	for _, w := range works {
		if w.raw == "" {
			continue
		}
		ours, base := s.find(group, w.name, false), s.find(group, w.raw, true)
		s.ratio(fmt.Sprintf("%s, %s: rate / raw", w.name, group), ours, base, metricRate, 0.90, false)
		s.ratio(fmt.Sprintf("%s, %s: allocations / raw", w.name, group), ours, base, metricAllocations, 2, true)
	}
	s.ratio(fmt.Sprintf("%s, %s: rate / raw into as many queues", sendAny, group),
		s.find(group, sendAny, false), s.find(group, toMany, true), metricRate, 0.90, false)
	for _, name := range []string{batchAny, sendAny} {
		s.ratio(fmt.Sprintf("%s, %s: rate / with a resolution of 100 ms", name, group),
			s.find(group, name, false), s.find(group, name+atTenths, true), metricRate, 0.90, false)
	}
	return nil
}

// spread publishes into as many plain queues as there are delay queues for the
// delays of anyDelay.
func (r *run) spread(c *client, t topology.QueueType) (*rawPublisher, error) {
	queues := make([]string, 50)
	for i := range queues {
		var err error
		if queues[i], err = c.plain(fmt.Sprintf("plain-%d", i), t); err != nil {
			return nil, err
		}
	}
	return newRawPublisher(c.conn, r.o.Body, queues...)
}

// sendBatches sends n messages by SendBatch, so many at a time. At the end of
// each batch it waits for the last confirms, so that a continuous stream is one
// batch.
func (c *client) sendBatches(ctx context.Context, n, batch, size int, delay func(i int) time.Duration, advance func(int)) error {
	msgs := make([]amqpx.Message, min(n, batch, maxStream))
	for sent := 0; sent < n; {
		msgs = msgs[:min(len(msgs), n-sent)]
		for i := range msgs {
			msgs[i] = amqpx.Message{Queue: c.queue, Delay: delay(sent + i), Body: body(size, uint64(sent+i))}
		}
		if err := c.SendBatch(ctx, msgs); err != nil {
			return err
		}
		sent += len(msgs)
		advance(len(msgs))
	}
	return nil
}

// sendShared sends n messages by Send from many goroutines.
func (c *client) sendShared(ctx context.Context, n, size int, delay func(i int) time.Duration, advance func(int)) error {
	return parallel(n, sendGoroutines, advance, func(i int) error {
		return c.Send(ctx, amqpx.Message{Queue: c.queue, Delay: delay(i), Body: body(size, uint64(i))})
	})
}
