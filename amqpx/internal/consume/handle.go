package consume

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// Handling gives access to the application's part in handling one delivery: the handler, the options and the hooks.
// Package amqpx implements it.
type Handling interface {
	// Start is called first. It returns the context for the handler and for End.
	Start(ctx context.Context) context.Context
	// Handle runs the handler. The handler may panic, and so may the methods of the error that it returns.
	Handle(ctx context.Context) error
	// ApplyPolicy returns the error to use in place of the handler's. If there is a policy, the error is marked with
	// PolicyApplied.
	ApplyPolicy(err error) error
	// Backoff returns the delay before the next attempt after err. The parameter policy is the retry policy's own
	// delay.
	Backoff(err error, policy time.Duration) time.Duration
	// End is called when the delivery has been settled.
	End(ctx context.Context, e End)
}

// End is the result of handling and settling one delivery.
type End struct {
	Outcome  Outcome
	Lateness time.Duration // the handler's start minus the due time, by this process's clock; negative if early
	Duration time.Duration // how long the handler ran
	Panicked bool
	Err      error // the handler's error
}

// handle runs the handler on one message and settles the message. It holds a slot while the handler runs, and after a
// success until the message is acknowledged. The retry or dead letter of a failed message is published without a slot,
// because the broker may take a long time to confirm it.
func (k *Consumer) handle(d *Delivery) {
	d.handling = k.set.Handling(d)
	ctx := d.handling.Start(k.handlers)
	end := End{Panicked: true}
	start := time.Now()
	if since := DueSince(d.DueAt, d.Created, d.Timestamp); !since.IsZero() {
		end.Lateness = start.Sub(since)
	}
	k.begunAt.Store(start.UnixNano())
	k.lateness.Store(int64(end.Lateness))
	p := dispose(actRetry, "", errGoexit)
	defer func() { // runs even if the handler calls runtime.Goexit
		end.Duration, end.Err = time.Since(start), p.err
		k.running.Add(-1)
		if d.sub.cancelled.Load() && (p.err != nil || !d.sub.ages.waited(end.Duration)) {
			k.overruns.put(d, p.text, d.sub.ages.long(d))
		}
		k.ids.unmark(d)
		k.handled.Add(1)
		if p.err == nil {
			defer func() { <-k.slots }()
		} else {
			k.failed.Add(1)
			<-k.slots
		}
		end.Outcome = k.settle(ctx, d, p)
		k.countCutOff(p, end.Outcome)
		d.handling.End(ctx, end)
	}()
	p, end.Panicked = k.attempt(ctx, d)
}

// countCutOff counts a handler whose message will be redelivered because the end of Close's context cut the
// handler off.
func (k *Consumer) countCutOff(p disposition, outcome Outcome) {
	again := outcome == Lost || outcome == Requeued && p.act != actRequeue
	if again && k.all.cfg.Forced.Err() != nil && !k.abandoned.Load() {
		k.all.abandoned.Add(1)
	}
}

// sendBack sends a message that arrived too early back to the broker.
func (k *Consumer) sendBack(d *Delivery) {
	k.settle(k.handlers, d, disposition{act: actReturn, offset: d.check.offset})
}

// attempt runs the handler, including its immediate repetitions, and returns the disposition. A panic in the handler,
// or in a method of its error, is treated as an error of that message.
func (k *Consumer) attempt(ctx context.Context, d *Delivery) (p disposition, panicked bool) {
	if p, ok := k.checkHistory(d); !ok {
		return p, false
	}
	for left := k.set.Retry.ImmediateRetries; ; left-- {
		if ctx.Err() != nil { // the drain time has ended
			left = 0
		}
		d.immediate.Store(int32(left))
		p, panicked = k.runOnce(ctx, d)
		if left == 0 || p.act != actRetry || p.delay > 0 { // run the handler again only after an error that requests nothing
			return p, panicked
		}
		k.log.Debug("a handler failed; it is run again immediately", zap.String("id", d.ID), zap.String("error", p.text))
	}
}

// checkHistory checks what has happened to a message so far. If the message must not reach its handler, because it
// cannot be read, its last run exceeded the consumer timeout or it was delivered too often, checkHistory returns its
// disposition and false.
func (k *Consumer) checkHistory(d *Delivery) (p disposition, ok bool) {
	if why, ok := d.Headers[header.Unreadable].(string); ok {
		return dispose(actDeadLetter, header.ReasonUnreadable, fmt.Errorf("the message cannot be read and was not handled: %s", why)), false
	}
	if err := k.overruns.take(d); err != nil {
		return dispose(actRetry, "", err), false
	}
	if d.deliveries <= header.MaxDeliveries {
		return disposition{}, true
	}
	switch before, seen := k.counts.put(d); {
	case !seen:
		return dispose(actRecount, "", errRecount), false
	case d.deliveries > before:
		return dispose(actDeadLetter, header.ReasonDeliveries, errDeliveries), false
	}
	return disposition{}, true
}

// runOnce runs the handler once and applies the error policy. It returns the disposition, and whether the handler or
// its error panicked.
func (k *Consumer) runOnce(ctx context.Context, d *Delivery) (p disposition, panicked bool) {
	var err error
	panicErr := guard.Recover(k.log, "handler", func() { err = d.handling.Handle(ctx) }, zap.String("id", d.ID))
	if panicErr == nil && err == nil {
		return p, false
	}
	if panicErr == nil {
		panicErr = guard.Call(k.log, "error of the handler", func() {
			err = d.ApplyPolicy(err)
			p, _ = dispositionOf(err)
			p.text = err.Error()
		}, zap.String("id", d.ID))
	}
	if panicErr != nil {
		p = dispose(actRetry, "", panicErr)
	}
	if p.act == actRequeue {
		p.delay = requeuePause(d)
	}
	return p, panicErr != nil
}
