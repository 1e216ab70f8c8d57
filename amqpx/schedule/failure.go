package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// recordTimeout is the time limit for recording a failure, which may be necessary after the handler's
// context has ended.
const recordTimeout = 5 * time.Second

// failed records a failed attempt, and passes it to the OnFailure hook. Two kinds of attempts do not count: one that
// was interrupted because the consumer stopped, since its message returns to the queue unchanged, and one that the
// function counts excludes, such as one whose handler snoozed the message. For the latter, failed only records the time
// until which the sweeper must not send the task again.
func (h *handler) failed(ctx context.Context, d *amqpx.Delivery, a *attempt, cause error) {
	cutOff := errors.Is(ctx.Err(), context.Canceled) // not DeadlineExceeded, which is the handler's own time limit
	if cutOff && a == nil {
		return
	}
	f := rows.Failure{Counts: counts(d, cause)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if cutOff {
		// The attempt was recorded before it ran. Undo that. If undoing fails, the attempt counts.
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

// counts reports whether an attempt that ended with cause counts towards the maximum number of attempts. An attempt
// does not count if it is repeated immediately, or if the handler snoozed or requeued the message.
func counts(d *amqpx.Delivery, cause error) bool {
	delay, again := d.RetryDelay(cause)
	return !amqpx.IsSnoozed(cause) && !amqpx.IsRequeued(cause) && (!again || delay > 0)
}

// record writes a failed attempt to the task's row. The parameter again is how long the sweeper must not send the task
// again.
//
// If another task with the failed task's unique key is pending, the failed task cannot become pending too. The task
// that is due first does the work: the failed task either stays running until its retry, or it gives way and is
// cancelled.
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

// besideTries is how many times record tries again if the pending task with the unique key keeps changing.
const besideTries = 3

// besideAnother decides whether a failed task stays running or gives way to the pending task with the same unique key.
// If that task is no longer pending, the failure can be recorded like any other.
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
	f.Cause = strings.TrimPrefix(fmt.Sprintf("%s; gave way to task %s with the same unique key %s, due at %s", f.Cause, other, key, due.UTC().Format(time.RFC3339)), "; ")
	return nil
}

// recordOnce records a failure in one transaction. It also ends the attempt a, unless a is nil because the attempt was
// not recorded before it ran.
func (h *handler) recordOnce(ctx context.Context, d *amqpx.Delivery, a *attempt, f rows.Failure, again time.Duration) error {
	return h.db.Transact(ctx, func(c rows.Conn) error {
		now, err := c.Clock(ctx) // ResendAt uses the database's clock, because relays compare it with that clock
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
		err = c.RecordFailure(ctx, fenceOf(d, now.UnixMilli()), f, token, now.UnixMilli())
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

// attemptNumber returns how many attempts the task has had, including the one that failed with cause.
func attemptNumber(d *amqpx.Delivery, a *attempt, cause error) int {
	if e, ok := errors.AsType[*poisonError](cause); ok {
		return e.attempts
	}
	if a != nil {
		return a.number
	}
	return d.Attempt
}

// retryMargin is how long the sweeper waits after a retry's due time before it sends the task again. If the pause
// before a retry is unknown, for example because a test has created the Delivery, untilRetry assumes unknownRetry.
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
