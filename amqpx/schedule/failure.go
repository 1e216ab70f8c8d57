package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// record records a failure, after which the task is not sent again for some time. If the unique
// key of a task that was running has another pending task by now, they cannot both be pending. The
// one that is due first does the work: the task waits for its retry as running, or gives way.
func (h *handler) record(ctx context.Context, d *amqpx.Delivery, a *attempt, f rows.Failure, again time.Duration) error {
	err := h.recordOnce(ctx, d, a, f, again)
	for range besideTries {
		if !sqldb.Duplicate(err) {
			break
		}
		if err = h.besideAnother(ctx, d, &f, again); err == nil {
			err = h.recordOnce(ctx, d, a, f, again)
		}
	}
	return err
}

// besideTries is how often the other task of a unique key may change while a failure is recorded.
const besideTries = 3

// besideAnother decides what becomes of a failed task while another one of its unique key is
// pending. If that has ended, the failure is recorded as any other.
func (h *handler) besideAnother(ctx context.Context, d *amqpx.Delivery, f *rows.Failure, again time.Duration) error {
	c, err := h.db.Conn(ctx)
	if err != nil {
		return err
	}
	key, other, err := c.KeyTaken(ctx, d.ID)
	if f.GivesWay, f.Stays = false, false; err != nil || other == "" {
		return err
	}
	task, err := c.Find(ctx, other, h.nowMilli(), rows.Unlocked)
	if err != nil {
		return err
	}
	due, retry := time.UnixMilli(task.Due), h.clock.Now().Add(again-retryMargin)
	if f.Stays = due.After(retry); f.Stays {
		return nil
	}
	f.GivesWay = true
	f.Cause = strings.TrimPrefix(fmt.Sprintf("%s; it gave way to task %s of its unique key %s, due at %s", f.Cause, other, key, due.UTC().Format(time.RFC3339)), "; ")
	return nil
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
