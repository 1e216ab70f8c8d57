package amqpx

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
)

// Since RabbitMQ 4.3, a message whose handler runs past the broker's consumer timeout is requeued as if by
// basic.nack. x-delivery-count does not increase, so no limit on deliveries would ever stop a handler that always
// takes too long. The consumer therefore counts such a run as a failed attempt. It does so only when the message
// is redelivered, because a retry published for a delivery that the broker has taken back would be a duplicate. If
// a message was only held, or its connection was lost, that does not count as an attempt.

// overruns records the messages whose handler was running when the broker cancelled the consumer of their
// subscription.
type overruns struct {
	mu sync.Mutex
	of map[string]overrun
}

// overrun is the state of a message when the handler that overran the consumer timeout was started.
type overrun struct {
	returns, acquired int64
	text              string // the text of the handler's error
}

// put records a message whose handler has ended after the broker cancelled the consumer.
func (o *overruns) put(d *Delivery, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) >= maxCounts {
		o.of = map[string]overrun{}
	}
	o.of[d.identity()] = overrun{d.returns, d.acquired, text}
}

// take removes the record of a redelivered message, and returns an error if the broker had taken the message back
// while its handler was running. If its channel or connection has ended in the meantime, each such end also counts
// as a delivery, so take compares how much the two counts have grown.
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
	if !ok || d.acquired-run.acquired <= d.returns-run.returns {
		return nil
	}
	return fmt.Errorf("%w; its result was %s", errOverrun, cmp.Or(run.text, "success"))
}

var errOverrun = errors.New("the broker took the message away while its handler was running, because that and the wait for it " +
	"took longer than the consumer timeout: bound the handler with Timeout, lower the prefetch, or raise consumer_timeout")
