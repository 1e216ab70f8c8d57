package amqpx

import (
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// maxPrefetch is the largest that AMQP has.
const maxPrefetch = 65535

// roomPatience is how long room for held messages is kept that few of them need.
const roomPatience = 10 * time.Second

// room is what a subscription has beside its first consumer on the broker: further ones,
// on the same channel, for messages that are held until their instant. Those must not take
// the places of messages that could be handled, and how many there are follows from the
// lead and the rate. A queue with a single active consumer gives the further ones nothing.
// A larger consumer in the place of the first would do without them, but between the two the
// broker makes another the active one of such a queue, which changes its order.
type room struct {
	places   int // of all consumers
	further  []place
	idle     time.Time // since when few are needed; zero while many are
	changing bool
	changed  chan roomChange

	more chan amqp.Delivery // of the further ones
	open sync.WaitGroup     // those that may still deliver
	rpc  sync.Mutex         // amqp091 takes one request of a channel at a time
}

type place struct {
	tag   string
	count int
}

// roomChange is the outcome of a change: places that were added, or taken away.
type roomChange struct {
	added place
	err   error
}

func newRoom(prefetch int) *room {
	return &room{places: prefetch, changed: make(chan roomChange, 1), more: make(chan amqp.Delivery)}
}

// fit begins to make room where half of it is held, and to give up what few need.
func (s *subscription) fit(k *consumer, now time.Time) {
	r := s.room
	if r.changing {
		return
	}
	held := len(s.held.early)
	if 2*held >= r.places {
		r.idle = time.Time{}
		if count := min(r.places, maxPrefetch-r.places); count > 0 && held > 0 {
			s.grow(k, count)
		}
		return
	}
	switch {
	case len(r.further) == 0 || 8*held > r.places:
		r.idle = time.Time{}
	case r.idle.IsZero():
		r.idle = now
	case now.Sub(r.idle) >= roomPatience:
		r.idle = now
		s.shrink()
	}
}

// grow adds a consumer on the broker with so many places.
func (s *subscription) grow(k *consumer, count int) {
	p := place{fmt.Sprintf("%s-%d", consumerTag, len(s.room.further)+2), count}
	s.room.changing = true
	s.room.open.Go(func() {
		deliveries, err := s.consume(k.queue, p)
		if err != nil {
			k.log.Warn("no more messages can be held", zap.Int("places", count), zap.Error(err))
		}
		s.room.changed <- roomChange{p, err}
		for raw := range deliveries {
			select {
			case s.room.more <- raw:
			case <-s.live.Done():
			}
		}
	})
}

// consume begins to consume with so many places.
func (s *subscription) consume(queue string, p place) (<-chan amqp.Delivery, error) {
	s.room.rpc.Lock()
	defer s.room.rpc.Unlock()
	if err := s.ch.Qos(p.count, 0, false); err != nil {
		return nil, err
	}
	return live.ConsumeQueue(s.ch, queue, p.tag)
}

// shrink cancels the newest of the further consumers. What it was given stays here.
func (s *subscription) shrink() {
	last := len(s.room.further) - 1
	p := s.room.further[last]
	s.room.further, s.room.places = s.room.further[:last], s.room.places-p.count
	s.room.changing = true
	go func() {
		s.cancel(p.tag)
		s.room.changed <- roomChange{}
	}()
}

func (s *subscription) cancel(tag string) {
	s.room.rpc.Lock()
	defer s.room.rpc.Unlock()
	_ = s.ch.Cancel(tag, false)
}

// take takes in what became of a change.
func (r *room) take(c roomChange) {
	r.changing = false
	if c.err == nil && c.added.count > 0 {
		r.further = append(r.further, c.added)
		r.places += c.added.count
	}
}

// cancelAll ends all consumers of the subscription.
func (s *subscription) cancelAll() {
	s.cancel(consumerTag)
	if s.room.changing {
		s.room.take(<-s.room.changed)
	}
	for _, p := range s.room.further {
		s.cancel(p.tag)
	}
}
