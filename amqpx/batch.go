package amqpx

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// SendBatch publishes the messages on one channel with pipelined confirms, the
// shortest delays first and those of one delay in the order given, and returns
// nil when all were confirmed. What fails on the way is
// retried within the context's deadline (Config.SendTimeout without one), as by
// Send; messages that failed for good are in a *BatchError by their index, the
// others are sent. A Delay is counted from when its message is first published,
// so that messages of one delay keep their order however long the batch takes. A
// message that is not possible (*MessageError,
// *topology.DelayError, ...) fails the whole batch before anything is sent; the
// error then is that one.
func (c *Client) SendBatch(ctx context.Context, msgs []Message) error {
	if len(msgs) == 0 {
		return nil
	}
	ctx, cancel := c.sendContext(ctx)
	defer cancel()
	start := time.Now()
	b := &batch{c: c, items: make([]prepared, len(msgs)), failed: map[int]*SendError{}}
	if len(c.hooks.send) > 0 {
		msgs = slices.Clone(msgs) // hooks add headers
		b.ctxs = make([]context.Context, len(msgs))
	}
	for i := range msgs {
		if b.ctxs != nil {
			b.ctxs[i] = c.hooks.sendStart(ctx, &msgs[i])
		}
		if err := c.prepareAs(&b.items[i], &msgs[i], "", start); err != nil {
			err = &indexError{i, err}
			for j := range b.ctxs[:min(i+1, len(b.ctxs))] {
				p := &b.items[j]
				if j == i {
					p = nil
				}
				c.sendEnd(b.ctxs[j], msgs[j].ID, p, start, err)
			}
			return err
		}
	}
	b.run(ctx)
	for i, ctx := range b.ctxs {
		var err error
		if f := b.failed[i]; f != nil {
			err = f
		}
		c.sendEnd(ctx, b.items[i].pub.MessageId, &b.items[i], start, err)
	}
	if len(b.failed) > 0 {
		return &BatchError{Total: len(msgs), Failed: b.failed}
	}
	return nil
}

// batch is one run of SendBatch.
type batch struct {
	c      *Client
	items  []prepared
	ctxs   []context.Context // of hooks; empty without
	failed map[int]*SendError

	inflight []batchItem // published and not yet confirmed, oldest first
	retry    []int       // failed this round, to be tried again
}

type batchItem struct {
	index int
	pub   *pubChannel
	sess  *session
	x     publication
}

// order is the order in which the items are published: by their delays. Messages
// of neighbouring delays are in one queue, and a run of messages for one queue
// costs a broker a third less than the same messages in turns with others.
func (b *batch) order() []int {
	order := make([]int, len(b.items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(b.items[i].first.Delay, b.items[j].first.Delay)
	})
	return order
}

// run publishes round after round what is not yet confirmed.
func (b *batch) run(ctx context.Context) {
	todo := b.order()
	for round := 1; len(todo) > 0; round++ {
		b.retry = nil
		for n, i := range todo {
			if err := b.publish(ctx, i, round); err != nil {
				b.fail(i, err)
				if ctx.Err() != nil || errors.Is(err, ErrClosed) {
					for _, j := range todo[n+1:] {
						b.fail(j, err)
					}
					break
				}
			}
		}
		for len(b.inflight) > 0 {
			b.reap(ctx, round)
		}
		if todo = b.retry; len(todo) > 0 {
			_ = b.c.pause(ctx, round) // the next publish reports the end of ctx
		}
	}
}

// publish writes item i, taking in confirms while the window is full.
func (b *batch) publish(ctx context.Context, i, round int) error {
	p := &b.items[i]
	sess, err := b.c.ready(ctx, p)
	if err != nil {
		return err
	}
	cost := sess.pub.cost(p.pub.Body)
	for !sess.pub.window.TryAcquire(cost) {
		if len(b.inflight) > 0 {
			b.reap(ctx, round)
			continue
		}
		if err := sess.pub.window.Acquire(ctx, cost); err != nil {
			return b.c.deadline(err)
		}
		break
	}
	now := time.Now()
	if round == 1 && p.relative {
		p.restart(now)
	}
	x, err := b.c.write(sess, p, now)
	if err != nil {
		b.settle(ctx, batchItem{index: i, sess: sess}, round, err)
		return nil
	}
	b.inflight = append(b.inflight, batchItem{index: i, pub: sess.pub, sess: sess, x: x})
	return nil
}

// reap waits for the oldest publication.
func (b *batch) reap(ctx context.Context, round int) {
	it := b.inflight[0]
	b.inflight = b.inflight[1:]
	if err := it.pub.outcome(ctx, it.x); err != nil {
		b.settle(ctx, it, round, err)
	}
}

// settle decides what becomes of an item that failed with err.
func (b *batch) settle(ctx context.Context, it batchItem, round int, err error) {
	if final := b.c.again(ctx, it.sess, &b.items[it.index], round, err); final != nil {
		b.fail(it.index, final)
		return
	}
	b.retry = append(b.retry, it.index)
}

func (b *batch) fail(i int, cause error) {
	p := &b.items[i]
	b.failed[i] = &SendError{ID: p.pub.MessageId, Unknown: p.unknown, Tries: p.tries, Cause: cause}
}
