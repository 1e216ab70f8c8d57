package amqpx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// process runs the handler on one message and settles the message's fate.
func (k *consumer) process(j job) {
	select {
	case <-j.gone: // cannot be acknowledged any more; the broker delivers it again
		return
	default:
	}
	k.running.Add(1)
	defer k.running.Add(-1)

	d := k.decode(j.raw)
	ctx := k.c.hooks.handleStart(k.handlers, d)
	end := HandleEnd{Delivery: d}
	start := time.Now()
	if !d.DueAt.IsZero() {
		end.Lateness = start.Sub(d.DueAt)
	}
	end.Panicked, end.Err = k.call(ctx, d)
	end.Duration = time.Since(start)
	end.Outcome = k.settle(j, d, end.Err)
	k.c.hooks.handleEnd(ctx, end)
}

// call runs the handler; a panic is an error of that message.
func (k *consumer) call(ctx context.Context, d *Delivery) (panicked bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			panicked = true
			err = fmt.Errorf("handler panicked: %v", r)
			k.log.Error("handler panicked", zap.String("id", d.ID), zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return false, k.handler(ctx, d)
}

// settle acknowledges, retries or dead-letters.
func (k *consumer) settle(j job, d *Delivery, err error) Outcome {
	if err == nil {
		return k.ack(j, Acked)
	}
	if _, rejected := errors.AsType[*rejectError](err); rejected {
		k.log.Info("dead-lettered", zap.String("id", d.ID), zap.String("reason", ReasonRejected), zap.Error(err))
		return k.pass(j, d, k.deadLetter(d, err, ReasonRejected), k.dead, DeadLettered)
	}
	if d.Attempt >= d.MaxAttempts {
		k.log.Warn("dead-lettered", zap.String("id", d.ID), zap.String("reason", ReasonAttempts), zap.Int("attempt", d.Attempt), zap.Error(err))
		return k.pass(j, d, k.deadLetter(d, err, ReasonAttempts), k.dead, DeadLettered)
	}
	m := k.again(d, err)
	k.log.Debug("retried", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Duration("delay", m.Delay), zap.Error(err))
	return k.pass(j, d, m, "", Retried)
}

func (k *consumer) ack(j job, o Outcome) Outcome {
	if err := j.raw.Ack(false); err != nil {
		return Lost
	}
	return o
}

// passTimeout bounds one attempt to publish a retry or a dead letter.
const passTimeout = 10 * time.Second

// pass publishes a message in place of the received one and acknowledges that
// one when the broker has confirmed. Until then the received one stays
// unacknowledged, so that nothing is lost; when neither is possible it goes back
// to the queue.
func (k *consumer) pass(j job, d *Delivery, m Message, direct string, o Outcome) Outcome {
	for {
		if k.handlers.Err() != nil { // the drain time is over
			return k.giveBack(j)
		}
		ctx, cancel := context.WithTimeout(k.handlers, passTimeout)
		err := k.c.sendOne(ctx, m, direct)
		cancel()
		if err == nil {
			return k.ack(j, o)
		}
		k.log.Warn("could not publish the message's "+string(o)+" form; trying again", zap.String("id", d.ID), zap.Error(err))
		select {
		case <-j.gone:
			return Lost
		case <-k.handlers.Done():
			return k.giveBack(j)
		default:
		}
		switch {
		case errors.Is(err, ErrMessage) && m.Headers != nil:
			// A foreign publisher's headers may be more than can be published again
			// (too large, types that amqp091 cannot write): the body matters more.
			k.log.Error("the message's headers cannot be published again and are dropped", zap.String("id", d.ID), zap.Error(err))
			m.Headers = nil
		case errors.Is(err, ErrMessage), errors.Is(err, ErrClosed):
			select {
			case <-time.After(time.Second): // do not spin on the same message
			case <-k.handlers.Done():
			case <-j.gone:
				return Lost
			}
			return k.giveBack(j)
		}
	}
}

func (k *consumer) giveBack(j job) Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return Lost
	}
	return Returned
}

// again is the message's next attempt.
func (k *consumer) again(d *Delivery, err error) Message {
	m := d.message()
	m.Queue = k.queue
	m.Attempt = d.Attempt + 1
	if r, ok := errors.AsType[*retryInError](err); ok {
		m.Delay = r.delay
	} else {
		m.Delay = k.policy.Backoff(d.Attempt, rand.Float64())
	}
	m.Delay = k.possible(m.Delay)
	m.own = amqp.Table{HeaderAttempts: attempts(d, err), HeaderError: cut(err.Error(), maxErrorText)}
	return m
}

// possible is the delay nearest to d that the strategy has: a declared one of
// ttl, or the strategy's maximum.
func (k *consumer) possible(d time.Duration) time.Duration {
	_, err := k.c.strategy.Route(topology.Destination{Queue: k.queue}, d, 0)
	de, ok := errors.AsType[*topology.DelayError](err)
	if !ok {
		return d
	}
	if len(de.Declared) == 0 {
		return min(d, k.c.strategy.MaxDelay())
	}
	best := de.Declared[0]
	for _, x := range de.Declared {
		if (x >= d && (best < d || x < best)) || (best < d && x > best) {
			best = x
		}
	}
	return best
}

// deadLetter is the message as it goes to the dead-letter queue.
func (k *consumer) deadLetter(d *Delivery, err error, reason string) Message {
	m := d.message()
	m.Queue = k.queue
	m.Attempt = d.Attempt
	m.DeliverAt = d.DueAt
	m.own = amqp.Table{
		HeaderReason:   reason,
		HeaderError:    cut(err.Error(), maxErrorText),
		HeaderAttempts: attempts(d, err),
	}
	return m
}

// Bounds of what is written about failures.
const (
	maxErrorText  = 1024
	maxAttemptLog = 32
)

// attempts is the record of failed attempts with this one added.
func attempts(d *Delivery, err error) []any {
	old, _ := d.Headers[HeaderAttempts].([]any)
	list := make([]any, 0, len(old)+1)
	for _, a := range old {
		if s, ok := a.(string); ok {
			list = append(list, cut(s, 300))
		}
	}
	list = append(list, cut(time.Now().UTC().Format(time.RFC3339Nano)+" "+err.Error(), 300))
	if len(list) > maxAttemptLog {
		list = list[len(list)-maxAttemptLog:]
	}
	return list
}

// cut shortens s to n bytes, at a character's boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
