package amqpx

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
)

// verdict is what is to become of a message. It is read from the handler's error once,
// because what others wrote may panic at any call.
type verdict struct {
	ask    ask
	reason string        // of askBury
	delay  time.Duration // of what is sent again
	err    error         // for hooks; nil: success
	text   string        // of err
}

type ask int

const (
	askRetry ask = iota // while there are attempts left
	askSnooze
	askRequeue
	askBury
	askRecount // see counts
)

// maxDeliveries is how often a message may have been delivered without an
// outcome. Its queue has no limit of its own, and a message that kills each process
// which handles it would do so for ever.
const maxDeliveries = 200

var (
	errDeliveries = fmt.Errorf("delivered more than %d times without an outcome: the consumer ended or lost its connection each time, or the message was taken and put back", maxDeliveries)
	errRecount    = errors.New("put back once, to see whether the broker counts its deliveries")
	errGoexit     = errors.New("handler ended its goroutine (runtime.Goexit, which t.FailNow calls)")
)

// ownVerdict is the verdict on an error that is not the user's.
func ownVerdict(ask ask, reason string, err error) verdict {
	return verdict{ask: ask, reason: reason, err: err, text: err.Error()}
}

// unhandled is the verdict on a message that does not get to its handler, and ok.
func (k *consumer) unhandled(d *Delivery) (v verdict, ok bool) {
	if why, ok := d.Headers[HeaderUnreadable].(string); ok {
		return ownVerdict(askBury, ReasonUnreadable, fmt.Errorf("cannot be read, and was not handled: %s", why)), true
	}
	n := d.deliveries()
	if n <= maxDeliveries {
		return verdict{}, false
	}
	switch before, seen := k.counts.put(d, n); {
	case !seen:
		return ownVerdict(askRecount, "", errRecount), true
	case n > before:
		return ownVerdict(askBury, ReasonDeliveries, errDeliveries), true
	}
	return verdict{}, false
}

// deliveries is how often the message was delivered before, as far as it says so.
func (d *Delivery) deliveries() int64 {
	if !d.Redelivered {
		return 0
	}
	n, _ := headerInt(d.Headers, headerDeliveries)
	return n
}

// headerDeliveries is the count of a quorum queue. Anybody may publish a message with
// it, and the queue replaces it only when it has something to count: a classic queue
// never, RabbitMQ 4.3 not for what was put back by basic.nack.
const headerDeliveries = "x-delivery-count"

// counts are the large counts of deliveries that messages had. Only one that rises when
// the message is rejected is believed.
type counts struct {
	mu   sync.Mutex
	last map[string]int64
}

// maxCounts bounds the messages that are remembered.
const maxCounts = 1000

// put keeps a message's count, and returns the one before.
func (c *counts) put(d *Delivery, n int64) (before int64, seen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxCounts {
		c.last = map[string]int64{}
	}
	key := d.ID
	if key == "" {
		sum := sha256.Sum256(d.Body)
		key = string(sum[:])
	}
	before, seen = c.last[key]
	c.last[key] = n
	return before, seen
}

// judge runs the handler. A panic, also one of its error's methods, is an error of that
// message.
func (k *consumer) judge(ctx context.Context, d *Delivery) (v verdict, panicked bool) {
	if v, ok := k.unhandled(d); ok {
		return v, false
	}
	p := guard.Call("handler", func() { v.err = k.handler(ctx, d) })
	if p == nil && v.err == nil {
		return v, false
	}
	if p == nil {
		p = guard.Call("error of the handler", func() { k.read(d, &v) })
	}
	if p != nil {
		p.Log(k.log, zap.String("id", d.ID))
		v.err, v.text = p, p.Error()
		k.wait(d, &v)
	}
	return v, p != nil
}

// read completes a verdict by its error.
func (k *consumer) read(d *Delivery, v *verdict) {
	switch {
	case IsRequeued(v.err):
		v.ask = askRequeue
	case IsRejected(v.err):
		v.ask, v.reason = askBury, ReasonRejected
	case IsSnoozed(v.err):
		v.ask = askSnooze
	}
	k.wait(d, v)
	v.text = v.err.Error()
}

// wait decides how long the message waits, if it is to be sent again.
func (k *consumer) wait(d *Delivery, v *verdict) {
	if v.delay == 0 && (v.ask == askSnooze || v.ask == askRetry && d.Attempt < d.MaxAttempts) {
		v.delay = k.retryDelay(d, v.err)
	}
}
