package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// taker takes messages from a queue and holds them, until they are acknowledged or put back.
type taker struct {
	ch     *amqp.Channel
	queue  string
	forced context.Context // when it ends, nothing is waited for any more
	took   int             // so far
	lots   [][]uint64      // delivery tags of those that are held, by the consumer that took them
	again  bool            // the last one that was taken had been put back at some time
	robbed bool            // others take what is put back, so that there is nothing to wait for
}

const (
	takeIdle    = 100 * time.Millisecond // how long a portion waits for a further message before it asks whether there is one
	syncTimeout = 30 * time.Second       // of a round trip to the queue's broker
)

// receive takes up to n messages; none means that there are none. A consumer whose prefetch is n gets n messages
// and no more, because none of them is acknowledged before it is cancelled; a basic.get for each would be n round
// trips.
func (t *taker) receive(ctx context.Context, n int) (taken []amqp.Delivery, err error) {
	tag := fmt.Sprintf("%s%010d", naming.RequeueConsumer, t.took) // a broker puts back by tag
	var from <-chan amqp.Delivery
	err = t.ask(ctx, func() (err error) {
		if err = t.ch.Qos(n, 0, false); err == nil {
			from, err = live.ConsumeQueue(t.ch, t.queue, tag)
		}
		return err
	})
	if errors.Is(err, live.ErrStream) {
		return nil, peekRefused(t.queue, live.ErrStream)
	}
	if err != nil {
		return nil, err
	}
	taken = t.arrived(ctx, from, n)
	if err = t.ask(t.forced, func() error { return t.ch.Cancel(tag, false) }); err != nil {
		return taken, err
	}
	for raw := range from {
		taken = append(taken, raw)
	}
	if len(taken) == 0 && ctx.Err() == nil { // nothing came in time: the queue itself knows whether it is empty
		var one []amqp.Delivery
		err = t.ask(ctx, func() error {
			raw, ok, err := t.ch.Get(t.queue, false)
			if err == nil && ok {
				one = []amqp.Delivery{raw}
			}
			return err
		})
		if err == nil { // or Get may still run
			taken = one
		}
	}
	if len(taken) > 0 {
		t.took += len(taken)
		t.again = taken[len(taken)-1].Redelivered
		tags := make([]uint64, len(taken))
		for i := range taken {
			tags[i] = taken[i].DeliveryTag
		}
		t.lots = append(t.lots, tags)
	}
	return taken, cmp.Or(err, ctx.Err())
}

// arrived returns the first n deliveries, or those before the first pause.
func (t *taker) arrived(ctx context.Context, from <-chan amqp.Delivery, n int) (taken []amqp.Delivery) {
	idle := time.NewTimer(takeIdle)
	defer idle.Stop()
	for len(taken) < n {
		select {
		case raw, ok := <-from:
			if !ok {
				return taken
			}
			taken = append(taken, raw)
			idle.Reset(takeIdle)
		case <-idle.C:
			return taken
		case <-ctx.Done():
			return taken
		}
	}
	return taken
}

// ask runs a request, and explains the end of the channel.
func (t *taker) ask(ctx context.Context, request func() error) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := wait.Done(ctx, request)
	if err != nil && t.ch.IsClosed() {
		return fmt.Errorf("the broker took the channel away; what was not sent is in the queue again: %w", err)
	}
	return err
}

// remove takes a message off the queue.
func (t *taker) remove(raw *amqp.Delivery) error {
	if err := raw.Ack(false); err != nil {
		return err
	}
	for i := range t.lots {
		if at, ok := slices.BinarySearch(t.lots[i], raw.DeliveryTag); ok {
			t.lots[i] = slices.Delete(t.lots[i], at, at+1)
			return nil
		}
	}
	return nil
}

// holds reports whether messages are held.
func (t *taker) holds() bool {
	return slices.ContainsFunc(t.lots, func(tags []uint64) bool { return len(tags) > 0 })
}

// putBack returns the messages that are held to the queue, in its order. It waits for each lot: of a quorum queue
// a broker has 32 returns under way at a time, and mixes up the lots of those that wait.
func (t *taker) putBack() error {
	if !t.holds() {
		return nil
	}
	there, err := t.ready()
	for _, tags := range t.lots {
		if len(tags) == 0 || err != nil {
			continue
		}
		if err = t.ch.Nack(tags[len(tags)-1], true, true); err != nil { // by basic.reject 4.3 counts it
			return err
		}
		there, err = t.seen(there + len(tags))
	}
	return err
}

// seen waits until so many messages are ready, for a second: somebody may have taken them. A quorum queue answers
// before it has put them back, and a run that begins then would find none. It returns how many are.
func (t *taker) seen(want int) (there int, err error) {
	for try := range 50 {
		if there, err = t.ready(); err != nil || there >= want || t.robbed {
			return there, err
		}
		<-time.After(time.Duration(try) * time.Millisecond)
	}
	t.robbed = true
	return there, nil
}

// settled waits until the queue has taken note of every acknowledgement. Others is how many consumers it counts
// beside the channel's.
func (t *taker) settled(others int) error {
	return t.ask(t.forced, func() error { return wire.AwaitSettled(t.forced, t.ch, t.queue, others) })
}

// ready is how many messages of the queue are there to be taken.
func (t *taker) ready() (int, error) {
	var q amqp.Queue
	err := t.ask(t.forced, func() (err error) {
		q, err = t.ch.QueueDeclarePassive(t.queue, true, false, false, false, nil)
		return err
	})
	if err != nil { // or the question may still be asked
		return 0, err
	}
	return q.Messages, nil
}

// portions bound how many messages are taken at a time. How long they are shows when they are there, so that the
// first portion is small, and each at most twice as large as the one before.
type portions struct {
	most    int // of one
	grown   int // how many the last one might have had
	longest int // body that was seen
}

const (
	firstPortion = 8
	portionBytes = 16 << 20 // if none is longer than those before
)

// next is how many messages to take.
func (p *portions) next() int {
	p.grown = min(max(2*p.grown, firstPortion), p.most)
	return max(1, min(p.grown, portionBytes/max(p.longest, 1)))
}

// saw remembers how long messages are.
func (p *portions) saw(raw *amqp.Delivery) { p.longest = max(p.longest, len(raw.Body)) }
