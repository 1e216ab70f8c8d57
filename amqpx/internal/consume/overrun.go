package consume

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Since RabbitMQ 4.3, a message whose handler runs past the broker's consumer timeout is requeued as if by basic.nack.
// x-delivery-count does not increase, so no limit on deliveries would ever stop the redeliveries if the handler always
// takes too long. The consumer therefore counts such a run as a failed attempt. It does so only when the message is
// redelivered, because a retry published for a delivery that the broker has taken back would be a duplicate. If a
// message was only held, or its connection was lost, that does not count as an attempt.
//
// After the first overrun, the consumer cancels its subscription. Since the broker cannot report a second overrun to a
// cancelled consumer, it closes the channel, and all other messages are requeued as if the channel were lost. How long
// their handlers have run then shows which of them have overrun as well (see ages).

// overruns records the messages whose handler was running when the broker cancelled the consumer of their
// subscription.
type overruns struct {
	mu sync.Mutex
	of map[string]overrun
}

// overrun records a run that exceeded the consumer timeout, with the message's counts at the start of that run.
type overrun struct {
	returns, acquired int64
	text              string // the text of the handler's error
	long              bool   // the delivery was unacknowledged for at least as long as the first one that exceeded the timeout
}

// put records a message whose handler returned after the broker had cancelled the consumer.
func (o *overruns) put(d *Delivery, text string, long bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) >= maxCounts {
		o.of = map[string]overrun{}
	}
	o.of[d.identity()] = overrun{d.returns, d.acquired, text, long}
}

// take removes the record of a redelivered message. It returns an error if the broker requeued the message because its
// handler exceeded the consumer timeout or was about to exceed it. An overrun increases the message's acquired count
// but not its return count, while a lost channel or connection increases both, so take compares how much they have
// grown. If they grew equally and the channel was closed, an overrun is assumed only if the delivery was unacknowledged
// for at least as long as the first one that exceeded the timeout.
func (o *overruns) take(d *Delivery) error {
	if !d.Redelivered {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.of) == 0 {
		return nil
	}
	id := d.identity()
	run, ok := o.of[id]
	delete(o.of, id)
	more := d.acquired - run.acquired
	if !ok || more <= d.returns-run.returns && (more <= 0 || !run.long) {
		return nil
	}
	return fmt.Errorf("%w; its result was %s", errOverrun, cmp.Or(run.text, "success"))
}

var errOverrun = errors.New("the broker requeued the message while its handler was running, because waiting for the handler and running it together " +
	"took longer than the consumer timeout: limit the handler's time with Timeout, lower the prefetch, or raise consumer_timeout")

// ages tracks how long the deliveries of a subscription stay unacknowledged, from their arrival until they are settled,
// to estimate the broker's consumer timeout, which a client cannot query.
type ages struct {
	mu      sync.Mutex
	working map[*Delivery]struct{}
	longest time.Duration // the greatest age at which a delivery was settled in time
	limit   time.Duration // estimate of the consumer timeout, made when the broker cancels the consumer; 0 before that
}

// start records that a delivery is being handled or settled.
func (a *ages) start(d *Delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working == nil {
		a.working = map[*Delivery]struct{}{}
	}
	a.working[d] = struct{}{}
}

// end records that a delivery was settled.
func (a *ages) end(d *Delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.working, d)
	if a.limit == 0 {
		a.longest = max(a.longest, time.Since(d.came))
	}
}

// overrun estimates the consumer timeout after the broker has cancelled the consumer. The estimate is the age of the
// oldest unacknowledged delivery, in held or in a.working, but at least the greatest age at which a delivery was
// settled in time.
func (a *ages) overrun(held []*Delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit > 0 {
		return
	}
	a.limit = a.longest
	for _, d := range held {
		a.limit = max(a.limit, time.Since(d.came))
	}
	for d := range a.working {
		a.limit = max(a.limit, time.Since(d.came))
	}
}

// waited reports whether a delivery whose handler took the given time exceeded the consumer timeout because it waited
// for a slot, rather than because of its handler. Such a run does not count as an attempt if it succeeds. This cannot
// repeat forever, because the message is redelivered ahead of the ones that it waited for.
func (a *ages) waited(took time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return 2*took < a.limit
}

// long reports whether a delivery has been unacknowledged for as long as one that exceeded the consumer timeout.
func (a *ages) long(d *Delivery) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limit > 0 && time.Since(d.came) >= a.limit
}
