package amqpx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// SendBatch publishes messages with pipelined confirms and returns nil when all of them are confirmed. It
// publishes the shortest delays first, and messages with the same delay and destination in the given order. Like
// Send, it retries failed messages until the context's deadline, or for Config.SendTimeout if the context has
// none.
//
// A Delay counts from when its message is first published, so messages with the same delay keep their order
// however long the batch takes.
//
// If some messages are refused, or are not confirmed before the deadline, the error is a *BatchError with their errors
// by index, and all other messages were confirmed. If a message is invalid, SendBatch returns its error (a
// *MessageError, *topology.DelayError and so on), and sends none of the messages.
func (c *Client) SendBatch(ctx context.Context, msgs []Message) error {
	failed := map[int]*SendError{}
	var mu sync.Mutex
	err := c.sendEach(ctx, msgs, func(i int, err error) {
		if f, ok := errors.AsType[*SendError](err); ok {
			mu.Lock()
			failed[i] = f
			mu.Unlock()
		}
	})
	if err == nil && len(failed) > 0 {
		return &BatchError{Total: len(msgs), Failed: failed}
	}
	return err
}

// SendEach is like SendBatch, for a caller that wants each result without waiting for the slowest message. It calls
// outcome once per message with the message's index and nil or a *SendError, usually while other messages are still
// being sent. For messages with the same delay and destination, it calls outcome in their order unless one of them has
// to be tried again. The function is called from several goroutines and must not block. All calls have returned when
// SendEach returns.
//
// If outcome is nil or a message is invalid, SendEach returns an error without sending anything or calling outcome. It
// also returns an error if outcome has panicked or ended its goroutine (runtime.Goexit). All messages were tried even
// then.
func (c *Client) SendEach(ctx context.Context, msgs []Message, outcome func(i int, err error)) error {
	if outcome == nil {
		return fmt.Errorf("%w: SendEach: outcome is nil; pass a function, or use SendBatch, which collects the outcomes", ErrConfig)
	}
	var panicked atomic.Pointer[guard.PanicError] // the last panic of outcome
	err := c.sendEach(ctx, msgs, func(i int, err error) {
		if p := guard.Call(c.log, "the outcome callback of SendEach", func() { outcome(i, err) }); p != nil {
			panicked.Store(p)
		}
	})
	if p := panicked.Load(); err == nil && p != nil {
		return fmt.Errorf("every message was tried, but %w", p)
	}
	return err
}

// sendEach is SendEach for an outcome function that must not panic or end its goroutine.
func (c *Client) sendEach(ctx context.Context, msgs []Message, outcome func(i int, err error)) error {
	if err := c.opened(); err != nil {
		return err
	}
	if len(msgs) == 0 {
		return nil
	}
	ctx, cancel := c.sendContext(ctx)
	defer cancel()
	start, now, up := time.Now(), c.cfg.Now(), time.Since(c.began)
	b := &batch{c: c, items: make([]prepared, len(msgs)), start: start, outcome: outcome}
	if c.hooks.sends {
		b.ctxs = make([]context.Context, len(msgs))
	}
	for i := range msgs {
		m := &msgs[i]
		if b.ctxs != nil {
			m = &Message{}
			b.ctxs[i], *m = c.hooks.sendStart(ctx, msgs[i])
		}
		if err := c.prepareAs(&b.items[i], m, nil, now); err != nil {
			if len(msgs) > 1 {
				err = &indexError{i, err}
			}
			for j := range b.ctxs[:min(i+1, len(b.ctxs))] {
				c.endSend(b.ctxs[j], &b.items[j], start, err)
			}
			return err
		}
		b.items[i].up = up // all messages of the batch share the start time
		if b.items[i].from == fromCall {
			b.items[i].from = fromWrite
		}
	}
	if err := c.sends.admit(len(msgs)); err != nil {
		for i := range b.items {
			b.tell(i, b.items[i].failed(err))
		}
	} else {
		b.publishAll(ctx)
	}
	return nil
}

// batch holds the state of one call to SendBatch or SendEach.
type batch struct {
	c       *Client
	items   []prepared
	ctxs    []context.Context // the context that the hooks returned for each message; nil if no hook observes sends
	start   time.Time
	outcome func(i int, err error)
}

// finish reports the result of an admitted message, which then no longer counts as being sent (Client.sends).
func (b *batch) finish(i int, err error) {
	b.tell(i, err)
	b.c.sends.done(err)
}

// tell reports the result of a message to the hooks and to outcome.
func (b *batch) tell(i int, err error) {
	if b.ctxs != nil {
		b.c.endSend(b.ctxs[i], &b.items[i], b.start, err)
	}
	b.outcome(i, err)
}

// order returns the indexes of the messages in the order in which they are published, which is by delay. Messages with
// similar delays enter the same queue, and a run of messages for one queue costs the broker a third less than the same
// messages interleaved with messages for other queues.
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

// groups divides the messages into one group for each pair of first queue and destination. The groups, and the messages
// in them, are in publishing order.
func (b *batch) groups() []*group {
	type key struct {
		entry, queue string
		dest         topology.Destination
	}
	var groups []*group
	byKey := map[key]*group{}
	var last key
	var g *group
	for _, i := range b.order() {
		p := &b.items[i]
		k := key{p.first.Exchange, p.first.Queue, p.dest}
		if g == nil || k != last {
			if g, last = byKey[k], k; g == nil {
				g = &group{b: b, waits: make(chan struct{})}
				byKey[k] = g
				groups = append(groups, g)
			}
		}
		g.items = append(g.items, i)
	}
	return groups
}

// publishAll starts one group after another, and waits for all of them. The next group starts when the previous one has
// written all of its messages, or has written none for groupPatience because its destination or its queue is not ready.
func (b *batch) publishAll(ctx context.Context) {
	groups := b.groups()
	if len(groups) == 1 {
		groups[0].rounds(ctx)
		return
	}
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() { g.rounds(ctx) })
		<-g.waits
	}
	all.Wait()
}

// group holds the messages of a batch that enter the same queue for the same destination.
type group struct {
	b     *batch
	items []int

	inflight []batchItem   // published and not yet confirmed, oldest first
	again    []int         // items that failed in this round and are to be tried again
	pause    time.Duration // the longest pause that one of these items needs; 0 for the usual back-off

	wrote atomic.Int64  // number of messages written so far
	waits chan struct{} // closed when the next group may start
	once  sync.Once
}

type batchItem struct {
	index int
	attempt
}

// groupPatience is how long a group may go without writing a message before the next group starts.
const groupPatience = 20 * time.Millisecond

// yield lets the next group start.
func (g *group) yield() { g.once.Do(func() { close(g.waits) }) }

// watch calls yield when nothing has been written for groupPatience.
func (g *group) watch() (stop func()) {
	var seen int64
	var t *time.Timer
	var mu sync.Mutex
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		n := g.wrote.Load()
		if n == seen {
			g.yield()
			return
		}
		seen = n
		t.Reset(groupPatience)
	}
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(groupPatience, look)
	return func() { t.Stop() }
}

// rounds publishes the unconfirmed messages in rounds until all of them have a result.
func (g *group) rounds(ctx context.Context) {
	stop := g.watch()
	defer stop()
	defer g.yield()
	todo := g.items
	for len(todo) > 0 {
		g.again, g.pause = nil, 0
		for _, i := range todo {
			g.publishItem(ctx, i)
		}
		g.yield()
		for len(g.inflight) > 0 {
			g.reap(ctx)
		}
		if todo = g.again; len(todo) > 0 {
			_ = g.b.c.pause(ctx, &g.b.items[todo[0]], g.pause) // ignore the error: if ctx has ended, the next publish reports it
		}
	}
}

// publishItem writes item i. If that fails, it passes the failure to followItem. If the message has a channel to
// itself, publishItem then waits for the outcomes of all messages that the group has written.
func (g *group) publishItem(ctx context.Context, i int) {
	p := &g.b.items[i]
	a := g.b.c.publish(ctx, p, g.enter)
	if !a.written {
		g.followItem(ctx, i, a.by, a.not)
		return
	}
	g.wrote.Add(1)
	g.inflight = append(g.inflight, batchItem{i, a})
	if a.x.Alone() {
		for len(g.inflight) > 0 {
			g.reap(ctx)
		}
	}
}

// enter waits for capacity in the publish window. It first processes this group's own confirms, which free
// capacity, and then waits for other senders to free some.
func (g *group) enter(ctx context.Context, w *flow.Window, e flow.Entry, cost int64) (flow.Share, error) {
	for len(g.inflight) > 0 {
		if s, ok := w.TryEnter(e, cost); ok {
			return s, nil
		}
		g.reap(ctx)
	}
	return w.Enter(ctx, e, cost)
}

// reap waits for the outcome of the group's oldest unconfirmed message and passes it to followItem.
func (g *group) reap(ctx context.Context) {
	it := g.inflight[0]
	g.inflight = g.inflight[1:]
	g.followItem(ctx, it.index, it.by, it.wait(ctx))
}

// followItem decides what the outcome of a try means for item i: it reports the final result, or adds the item to those
// that are tried again in the next round.
func (g *group) followItem(ctx context.Context, i int, sess *session, o flow.Outcome) {
	p := &g.b.items[i]
	s := g.b.c.follow(ctx, p, sess, o)
	switch s.Do {
	case flow.Finish:
		g.b.finish(i, nil)
	case flow.GiveUp:
		g.b.finish(i, p.failed(s.Err))
	default:
		g.again = append(g.again, i)
		g.pause = max(g.pause, s.Pause)
	}
}
