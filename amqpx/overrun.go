package amqpx

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
)

// Since RabbitMQ 4.3 a message whose handler runs past the broker's consumer timeout comes back as if it had been put
// back by basic.nack: x-delivery-count stays, so no count of deliveries would ever end a handler that always takes
// too long. Its consumer counts such a run as a failed attempt. It does so when the message comes again, and not
// before: what is published for a delivery that the broker has taken away would be one message more. A message that
// was only held, or whose connection was lost, is no attempt.

// overruns are messages whose handler was running when the broker ended the consumer of its subscription.
type overruns struct {
	mu sync.Mutex
	of map[string]overrun
}

// overrun is what a message was like when the handler that ran past the timeout began.
type overrun struct {
	returns, acquired int64
	text              string // of the handler's error
}

// put keeps a message whose handler has ended after the broker ended the consumer.
func (o *overruns) put(d *Delivery, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) >= maxCounts {
		o.of = map[string]overrun{}
	}
	o.of[d.identity()] = overrun{d.returns, d.acquired, text}
}

// take forgets a message that is delivered again, and returns an error if the broker had taken it away from its handler.
// Each end of its channel or connection, of which there may have been some since, counts as a delivery too.
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
