package consume

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// disposition says what to do with a message after its handler has run. dispositionOf derives it from the handler's
// error only once, because the methods of a user's error may panic at any call. The Outcome says what was done.
type disposition struct {
	act    action
	reason string        // for actDeadLetter
	delay  time.Duration // requested delay before the next delivery; 0 for the back-off
	offset time.Duration // for actReturn: the clock that the due time was computed with, minus this process's clock
	err    error         // for hooks; nil on success
	text   string        // the text of err
}

const (
	actAck   action = iota
	actRetry        // if there are attempts left
	actSnooze
	actRequeue
	actDeadLetter
	actRecount // check whether the delivery count is plausible; see counts
	actReturn  // the message arrived too early
)

type action int

// dispose returns the disposition for one of this package's own errors.
func dispose(act action, reason string, err error) disposition {
	return disposition{act: act, reason: reason, err: err, text: err.Error()}
}

// dispositionOf returns the disposition that an error such as *RetryInError requests. If the error requests none, the
// action is actRetry, and the second result is false.
func dispositionOf(err error) (p disposition, asks bool) {
	retry, retryIn := errors.AsType[*RetryInError](err)
	snooze, snoozed := errors.AsType[*SnoozeError](err)
	early, tooEarly := errors.AsType[*duecheck.EarlyError](err)
	_, requeued := errors.AsType[*RequeueError](err)
	_, rejected := errors.AsType[*RejectError](err)
	p = disposition{act: actRetry, err: err}
	if retryIn {
		p.delay = retry.Delay
	}
	if snoozed {
		p.act, p.delay = actSnooze, snooze.Delay
	}
	if rejected {
		p.act, p.reason = actDeadLetter, header.ReasonRejected
	}
	if requeued {
		p.act, p.reason = actRequeue, ""
	}
	if tooEarly {
		p.act, p.offset = actReturn, early.Offset
	}
	return p, retryIn || snoozed || rejected || requeued || tooEarly
}

// requeueMin is the longest pause before a message is requeued for the first time. The longest pause doubles, up to
// requeueMax, with each earlier delivery that the broker counts in x-delivery-count or, since 4.3, in x-acquired-count.
const (
	requeueMin = time.Second
	requeueMax = 10 * time.Second
)

// requeuePause returns how long a message is held before it is requeued: a random duration between half of its longest
// pause and all of it.
func requeuePause(d *Delivery) time.Duration {
	return wait.Backoff(requeueMin, requeueMax, int(min(max(d.deliveries, d.acquired, 0), header.MaxDeliveries))+1)
}

var (
	errDeliveries = fmt.Errorf("delivered more than %d times without an outcome: each time the consumer stopped or lost its connection, or the message was read and requeued", header.MaxDeliveries)
	errRecount    = errors.New("requeued once, to find out whether the broker counts its deliveries")
	errGoexit     = errors.New("the handler " + guard.Goexit)
)

// counts remembers delivery counts that are implausibly large. Because a publisher can set such a count, the consumer
// requeues the message once, and trusts the count only if the requeue has increased it.
type counts struct {
	mu   sync.Mutex
	last map[string]int64
}

// maxCounts is the maximum number of messages whose counts are remembered. When it is reached, all counts are dropped.
const maxCounts = 1000

// put remembers a message's count. It returns the previously remembered count, and whether there was one.
func (c *counts) put(d *Delivery) (before int64, seen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxCounts {
		c.last = map[string]int64{}
	}
	key := d.identity()
	before, seen = c.last[key]
	c.last[key] = d.deliveries
	return before, seen
}
