package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// recordTimeout bounds the recording of a failure, which may have to happen when
// the handler's context is about to end.
const recordTimeout = 5 * time.Second

// failed records a failed attempt. An attempt that was cut off by the end of the
// consumer is none: its message goes back to the queue as it was. Nor is one that
// snoozes or requeues, but the sweeper has to know for how long.
func (h *handler) failed(ctx context.Context, d *amqpx.Delivery, a *attempt, cause error) {
	cutOff := errors.Is(ctx.Err(), context.Canceled) // the other end is the handler's own time limit
	if cutOff && a == nil {
		return
	}
	f := rows.Failure{Counts: counts(d, cause)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if cutOff {
		// As if it had not been recorded before it ran; if that fails, it counts.
		_ = h.record(ctx, d, a, rows.Failure{}, 0)
		return
	}
	if f.Counts {
		f.Attempts, f.Cause = attemptNumber(d, a, cause), rows.ErrorText(cause)
		f.Final = amqpx.IsRejected(cause) || (d.MaxAttempts > 0 && d.Attempt >= d.MaxAttempts)
	}
	var again time.Duration
	if !f.Final {
		again = untilRetry(d, cause) + retryMargin
	}
	err := h.record(ctx, d, a, f, again)
	if h.onFailure != nil && f.Counts {
		h.onFailure(ctx, d, cause, f.Final, err)
	}
}

// counts reports whether an attempt that ended with cause uses up an attempt. One that is
// repeated at once does not.
func counts(d *amqpx.Delivery, cause error) bool {
	delay, again := d.RetryDelay(cause)
	return !amqpx.IsSnoozed(cause) && !amqpx.IsRequeued(cause) && (!again || delay > 0)
}

// record records a failure, after which the task is not sent again for some time. A task
// that was running and whose unique key another one has by now is not tried again: that
// one does the work.
func (h *handler) record(ctx context.Context, d *amqpx.Delivery, a *attempt, f rows.Failure, again time.Duration) error {
	err := h.recordOnce(ctx, d, a, f, again)
	if sqldb.Duplicate(err) {
		f.GivesWay = true
		err = h.recordOnce(ctx, d, a, f, again)
	}
	return err
}

// recordOnce also ends the attempt a that was recorded before it ran, if it was.
func (h *handler) recordOnce(ctx context.Context, d *amqpx.Delivery, a *attempt, f rows.Failure, again time.Duration) error {
	return h.db.Transact(ctx, func(c rows.Conn) error {
		now, err := c.Clock(ctx, h.own) // by which the relays judge when to send again
		if err != nil {
			return err
		}
		if again > 0 {
			f.ResendAt = now.Add(again).UnixMilli()
		}
		token := ""
		if a != nil {
			token = a.token
		}
		err = c.RecordFailure(ctx, d.ID, d.Version, f, token, now.UnixMilli())
		if err != nil || a == nil {
			return err
		}
		number := a.number
		if !f.Counts {
			number = a.before
		}
		return c.EndAttempt(ctx, a.EffectKey, number, a.token)
	})
}

// attemptNumber is how many attempts the task has had.
func attemptNumber(d *amqpx.Delivery, a *attempt, cause error) int {
	if e, ok := errors.AsType[*PoisonError](cause); ok {
		return e.Attempts
	}
	if a != nil {
		return a.number
	}
	return d.Attempt
}

// retryMargin is how long after a retry was due the sweeper goes on to leave the
// task alone. A retry whose pause is not known, because the Delivery is a test's,
// is taken to come within unknownRetry.
const (
	retryMargin  = 2 * time.Minute
	unknownRetry = 15 * time.Minute
)

func untilRetry(d *amqpx.Delivery, cause error) time.Duration {
	if delay, ok := d.RetryDelay(cause); ok {
		return delay
	}
	return unknownRetry
}
