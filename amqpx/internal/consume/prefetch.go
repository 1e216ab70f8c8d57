package consume

import (
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// MaxPrefetch is the largest prefetch count that AMQP can express.
const MaxPrefetch = 65535

// shrinkAfter is how long held messages must have used little of the prefetch before an additional consumer is
// cancelled.
const shrinkAfter = 10 * time.Second

// prefetch grows a subscription's prefetch while many messages are held until their due time, so that held messages do
// not use up the prefetch that is needed for messages that are ready to be handled. How many messages are held depends
// on the lead and the message rate. The prefetch grows by additional consumers on the same channel. On a queue with a
// single active consumer, the additional consumers receive nothing. Replacing the first consumer by one with a larger
// prefetch would not help there: until the new one has started, the broker would activate another consumer of the
// queue, which would change the order of messages.
type prefetch struct {
	total    int // prefetch of all consumers together
	extra    []brokerConsumer
	idle     time.Time // when the need for the prefetch became small; zero while much of it is needed
	changing bool
	changed  chan prefetchChange

	more   chan amqp.Delivery // deliveries to the additional consumers
	open   sync.WaitGroup     // additional consumers that may still receive deliveries
	rpc    wait.Mutex         // serializes requests on the channel, as amqp091 requires
	ending sync.Map           // tags of the consumers that this process has cancelled
	ended  chan struct{}      // receives an element when the broker has cancelled an additional consumer
}

// brokerConsumer identifies one of a subscription's consumers on the broker.
type brokerConsumer struct {
	tag      string
	prefetch int
}

// prefetchChange is the result of adding or removing a consumer.
type prefetchChange struct {
	added brokerConsumer
	err   error
}

func newPrefetch(first int) *prefetch {
	return &prefetch{
		total: first, changed: make(chan prefetchChange, 1), more: make(chan amqp.Delivery),
		ended: make(chan struct{}, 1), rpc: wait.NewMutex(),
	}
}

// fit adds a consumer when held messages use half of the prefetch, and removes one when little of the prefetch has been
// needed for a while or when the buffered messages use too much memory.
func (s *subscription) fit(k *Consumer, now time.Time) {
	p := s.prefetch
	if p.changing {
		return
	}
	held := len(s.buffer.held)
	full := s.buffer.bytes > k.set.HeldBytes
	if 2*held >= p.total && !full {
		p.idle = time.Time{}
		if count := p.spare(k.set.HeldBytes, &s.buffer); count > 0 && s.told == nil {
			s.grow(k, count)
		}
		return
	}
	switch {
	case full && len(p.extra) > 0:
		s.shrink()
	case len(p.extra) == 0 || 8*held > p.total:
		p.idle = time.Time{}
	case p.idle.IsZero():
		p.idle = now
	case now.Sub(p.idle) >= shrinkAfter:
		p.idle = now
		s.shrink()
	}
}

// spare returns by how much the prefetch may grow; it must not grow if the result is 0 or negative. The prefetch may at
// most double, and must not exceed MaxPrefetch or the number of messages of the current average size that fit into the
// limit for held messages, in bytes.
func (p *prefetch) spare(limit int, b *buffer) int {
	if b.count == 0 {
		return 0
	}
	return min(p.total, MaxPrefetch-p.total, limit/(b.bytes/b.count)-max(p.total, b.count))
}

// grow starts an additional consumer on the broker with the given prefetch.
func (s *subscription) grow(k *Consumer, count int) {
	b := brokerConsumer{fmt.Sprintf("%s-%d", consumerTag, len(s.prefetch.extra)+2), count}
	s.prefetch.changing = true
	s.prefetch.open.Go(func() {
		deliveries, err := k.startOn(s, b)
		if err != nil {
			k.log.Warn("could not add a consumer to hold more messages; later messages may be late", zap.Int("prefetch", count), zap.Error(err))
		}
		s.prefetch.changed <- prefetchChange{b, err}
		if err != nil {
			return
		}
		for raw := range deliveries {
			select {
			case s.prefetch.more <- raw:
			case <-s.live.Done():
			}
		}
		s.prefetch.end(b.tag)
	})
}

// end records that an additional consumer receives no more deliveries. If this process did not cancel it, the broker
// did, and the broker may have requeued its unacknowledged messages, as it does when it cancels the first consumer.
func (p *prefetch) end(tag string) {
	if _, ours := p.ending.LoadAndDelete(tag); ours {
		return
	}
	select {
	case p.ended <- struct{}{}:
	default: // the channel already has an element, and one is enough
	}
}

// consume starts a broker consumer with the given tag and prefetch.
func (s *subscription) consume(queue string, b brokerConsumer) (<-chan amqp.Delivery, error) {
	if err := s.prefetch.rpc.Lock(s.live); err != nil {
		return nil, err
	}
	defer s.prefetch.rpc.Unlock()
	if err := s.ch.Qos(b.prefetch, 0, false); err != nil {
		return nil, err
	}
	return live.ConsumeQueue(s.ch, queue, b.tag)
}

// shrink cancels the newest additional consumer. Messages that were already delivered to it stay buffered.
func (s *subscription) shrink() {
	last := len(s.prefetch.extra) - 1
	b := s.prefetch.extra[last]
	s.prefetch.extra, s.prefetch.total = s.prefetch.extra[:last], s.prefetch.total-b.prefetch
	s.prefetch.changing = true
	go func() {
		s.cancel(b.tag)
		s.prefetch.changed <- prefetchChange{}
	}()
}

func (s *subscription) cancel(tag string) {
	if s.prefetch.rpc.Lock(s.live) != nil {
		return // the channel is closed or about to be closed
	}
	defer s.prefetch.rpc.Unlock()
	s.prefetch.ending.Store(tag, true)
	_ = s.ch.Cancel(tag, false)
}

// take applies the result of adding or removing a consumer.
func (p *prefetch) take(c prefetchChange) {
	p.changing = false
	if c.err == nil && c.added.prefetch > 0 {
		p.extra = append(p.extra, c.added)
		p.total += c.added.prefetch
	}
}

// cancelAll cancels all consumers of the subscription.
func (s *subscription) cancelAll() {
	s.cancel(consumerTag)
	if s.prefetch.changing {
		s.prefetch.take(<-s.prefetch.changed)
	}
	for _, b := range s.prefetch.extra {
		s.cancel(b.tag)
	}
}
