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
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// taker takes messages from a queue and holds them until they are acknowledged or put back.
type taker struct {
	ch     *amqp.Channel
	queue  string
	forced context.Context // when it ends, all operations stop waiting
	took   int             // number of messages taken so far
	lots   [][]uint64      // delivery tags of the messages that are held, grouped by the consumer that received them
	again  bool            // whether the last message that was taken had been put back before
	unseen bool            // messages that were put back cannot be counted, because other consumers receive them or the leader is busy
}

const (
	takeIdle    = 100 * time.Millisecond // pause after which a batch ends
	syncTimeout = 30 * time.Second       // limit for a round trip to the broker
)

// unanswered returns the error for a queue that has not answered in time.
func unanswered(queue string, within time.Duration) error {
	return &live.UnavailableError{Queue: queue, Reason: fmt.Sprintf("no answer within %v", within)}
}

// receive takes up to n messages; an empty result means that the queue is empty. It uses a consumer with a prefetch of
// n. Because none of its messages are acknowledged before the consumer is cancelled, it receives at most n messages. A
// basic.get for each message would need n round trips.
func (t *taker) receive(ctx context.Context, n int) (taken []amqp.Delivery, err error) {
	// Number the tags, zero-padded: when the channel closes, the broker requeues unacknowledged messages in the order
	// of consumer tags, and this keeps the queue's order.
	tag := fmt.Sprintf("%s%010d", naming.RequeueConsumer, t.took)
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
	if len(taken) == 0 && ctx.Err() == nil { // nothing arrived in time, so use basic.get to find out whether the queue is empty
		var one []amqp.Delivery
		err = t.ask(ctx, func() error {
			raw, ok, err := t.ch.Get(t.queue, false)
			if err == nil && ok {
				one = []amqp.Delivery{raw}
			}
			return err
		})
		if err == nil { // on an error, Get may still be running and may write to its result later
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

// arrived returns up to n deliveries. It stops at the first pause of takeIdle.
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

// ask runs a request with a time limit of syncTimeout, and explains its error.
func (t *taker) ask(ctx context.Context, request func() error) error {
	one, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := wait.Done(one, request)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		return unanswered(t.queue, syncTimeout)
	}
	if channels.IsForbidden(err) {
		return channels.NeedsPermission("read", err)
	}
	if err != nil && t.ch.IsClosed() {
		return fmt.Errorf("the broker closed the channel; the messages that were not sent are in the queue again: %w", err)
	}
	return err
}

// remove acknowledges a message, which removes it from the queue.
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

// holds reports whether the taker holds any messages.
func (t *taker) holds() bool {
	return slices.ContainsFunc(t.lots, func(tags []uint64) bool { return len(tags) > 0 })
}

// putBack puts the held messages back into the queue, in order. It waits until each group has arrived before it puts
// the next one back, because a broker with more than 32 pending returns to a quorum queue reorders them.
func (t *taker) putBack() error {
	if !t.holds() {
		return nil
	}
	there, err := t.ready()
	for _, tags := range t.lots {
		if len(tags) == 0 || err != nil {
			continue
		}
		if err = t.ch.Nack(tags[len(tags)-1], true, true); err != nil { // not basic.reject, which 4.3 counts as a failed delivery
			return err
		}
		there, err = t.seen(there + len(tags))
	}
	return err
}

// seen waits until at least the given number of messages are ready, for up to about a second, and returns how many are.
// A quorum queue answers before it has put messages back, and a run that starts at that moment would find none. The
// messages may never become ready, because another consumer may have taken them.
func (t *taker) seen(want int) (there int, err error) {
	for try := range 50 {
		if there, err = t.ready(); err != nil || there >= want || t.unseen {
			return there, err
		}
		<-time.After(time.Duration(try) * time.Millisecond)
	}
	t.unseen = true
	return there, nil
}

// settled waits until the queue has processed every acknowledgement. The parameter others is the number of the queue's
// other consumers, excluding those on this channel.
func (t *taker) settled(others int) error {
	return t.ask(t.forced, func() error { return wire.AwaitSettled(t.forced, t.ch, t.queue, others) })
}

// ready returns how many messages are ready in the queue.
func (t *taker) ready() (int, error) {
	var q amqp.Queue
	err := t.ask(t.forced, func() (err error) {
		q, err = channels.Count(t.forced, t.ch, t.queue)
		return err
	})
	if errors.Is(err, live.ErrUnavailable) {
		t.unseen = true
		return 0, nil
	}
	if err != nil { // do not read q, to which the request may still write
		return 0, err
	}
	return q.Messages, nil
}

// portions limits how many messages are taken at a time. The size of messages is known only once they have arrived, so
// the first batch is small, and each further batch is at most twice as large as the one before.
type portions struct {
	most    int // maximum number of messages in a batch
	grown   int // limit of the last batch by the number of messages, before portionBytes was applied
	longest int // longest body seen so far, in bytes
}

const (
	firstPortion = 8
	portionBytes = 16 << 20 // size limit of a batch, unless its messages are longer than the ones before
)

// next returns how many messages to take.
func (p *portions) next() int {
	p.grown = min(max(2*p.grown, firstPortion), p.most)
	return max(1, min(p.grown, portionBytes/max(p.longest, 1)))
}

// saw records the size of a message.
func (p *portions) saw(raw *amqp.Delivery) { p.longest = max(p.longest, len(raw.Body)) }
