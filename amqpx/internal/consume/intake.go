package consume

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// intake starts a handler for each message of a subscription as slots become free. It returns when ctx or the
// subscription ends, or when the consumer is paused with PauseHandBack.
func (k *Consumer) intake(ctx context.Context, s *subscription) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer k.look(&buffer{}, k.set.Prefetch) // the buffered deliveries are about to be returned to the queue
	for ctx.Err() == nil {
		mode, changed := k.paused()
		switch mode {
		case PauseHandBack:
			return errPaused
		case PauseKeepPlace:
			k.become(Paused, nil)
		default:
			k.become(Consuming, nil)
		}
		now := time.Now()
		pause := s.buffer.ripen(now)
		for _, d := range s.buffer.takeEarly() {
			k.start(d, k.sendBack)
		}
		s.renew(k)
		s.fit(k, now)
		k.look(&s.buffer, s.prefetch.total)
		var slots chan<- struct{}
		var due <-chan time.Time
		if pause > 0 {
			due = timer.C
			timer.Reset(pause)
		}
		if len(s.buffer.ready) > 0 && mode == "" {
			slots = k.slots
		}
		select {
		case <-ctx.Done():
		case <-s.live.Done():
			return context.Cause(s.live)
		case raw, ok := <-s.deliveries:
			if !ok {
				return s.ended()
			}
			k.receive(raw, s)
		case raw := <-s.prefetch.more:
			k.receive(raw, s)
		case c := <-s.prefetch.changed:
			s.prefetch.take(c)
		case <-s.prefetch.ended:
			return s.ended()
		case <-s.told:
			s.told = nil
			s.buffer.checkAgain(k.checkAgain)
		case d := <-s.renewals.ended:
			s.renewals.end(d, &s.buffer, time.Now())
		case slots <- struct{}{}:
			d := s.buffer.next()
			if s.lost() { // the broker redelivers the message
				<-k.slots
				continue
			}
			if !k.ids.mark(d) {
				s.buffer.setAside(d)
				<-k.slots
				continue
			}
			k.running.Add(1)
			k.start(d, k.handle)
		case <-k.ids.ended:
			s.buffer.release(time.Now())
		case <-changed:
		case <-due:
		}
	}
	return ctx.Err()
}

// start runs a function for a delivery in a goroutine, and counts it as work of the subscription and of the consumer.
func (k *Consumer) start(d *Delivery, do func(d *Delivery)) {
	s := d.sub
	s.work.Add(1)
	s.ages.start(d)
	k.work.Go(func() {
		defer s.work.Done()
		defer s.ages.end(d)
		do(d)
	})
}

// receive buffers a message until it may be handled or, if it is far too early, until it is sent back. If the message
// is to be held, receive may also start a request for the broker's time, or the check of the queue's delivery limit.
func (k *Consumer) receive(raw amqp.Delivery, s *subscription) {
	d := k.decode(raw, s)
	if d.check.doubt && s.told == nil {
		s.told = k.all.askClock()
	}
	d.check.doubt = d.check.doubt && s.told != nil
	now := time.Now()
	if d.check.at.After(now) && !k.asked && s.countsReturns() {
		k.asked = true
		k.leaving.Go(func() { k.checkLimit(s) })
	}
	s.buffer.add(d, now)
}
