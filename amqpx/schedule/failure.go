package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// recordTimeout bounds the recording of a failure, which may have to happen when
// the handler's context is about to end.
const recordTimeout = 5 * time.Second

// failed records a failed attempt. An attempt that was cut off by the end of the
// consumer is none: its message goes back to the queue as it was. Nor is one that
// snoozes or requeues, but the sweeper has to know how long.
func (h *handler) failed(ctx context.Context, d *amqpx.Delivery, a *attempt, cause error) {
	cutOff := errors.Is(ctx.Err(), context.Canceled) // the other end is the handler's own time limit
	if cutOff && a == nil {
		return
	}
	final := counts(cause) && (amqpx.IsRejected(cause) || (d.MaxAttempts > 0 && d.Attempt >= d.MaxAttempts))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if cutOff {
		_ = h.forget(ctx, a) // it counts, then
		return
	}
	err := h.record(ctx, d, a, cause, final)
	if h.onFailure != nil && counts(cause) {
		h.onFailure(ctx, d, cause, final, err)
	}
}

// counts tells whether an attempt that ended so is one.
func counts(cause error) bool { return !amqpx.IsSnoozed(cause) && !amqpx.IsRequeued(cause) }

// retryMargin is how long after a retry was due the sweeper goes on to leave the
// task alone. A retry whose pause is not known, because the Delivery is a test's,
// is taken to come within unknownRetry.
const (
	retryMargin  = 2 * time.Minute
	unknownRetry = 15 * time.Minute
)

// forget makes an attempt that was recorded before it ran as if it had not been.
func (h *handler) forget(ctx context.Context, a *attempt) error {
	return h.settle(ctx, a.task, a.version, a, false, func(time.Time) (string, []any) { return "status = 'pending'", nil })
}

func (h *handler) record(ctx context.Context, d *amqpx.Delivery, a *attempt, cause error, final bool) error {
	counted := counts(cause)
	return h.settle(ctx, d.ID, d.Version, a, counted, func(now time.Time) (string, []any) {
		set, args := "updated_at = ?", []any{now.UnixMilli()}
		if counted {
			number := attemptNumber(d, a, cause)
			set += ", attempts = CASE WHEN attempts < ? THEN ? ELSE attempts END, last_error = ?"
			args = append(args, number, number, text(cause))
		}
		if final {
			return set + ", status = 'failed', finished_at = ?", append(args, now.UnixMilli())
		}
		// The relay may not have marked the row yet; it leaves rows alone that a
		// handler holds.
		set += ", status = 'pending', resend_at = CASE WHEN resend_at IS NULL OR resend_at < ? THEN ? ELSE resend_at END"
		later := now.Add(untilRetry(d, cause) + retryMargin).UnixMilli()
		return set, append(args, later, later)
	})
}

// settle changes the task's row, unless it has had another outcome or an attempt of
// another queue runs under a lease, and ends the attempt a that was recorded before
// it ran, if it was.
func (h *handler) settle(ctx context.Context, id string, version int64, a *attempt, counts bool, set func(now time.Time) (string, []any)) error {
	dialect, err := h.dialect.Resolve(ctx, h.db)
	if err != nil {
		return err
	}
	return sqldb.Transact(ctx, h.db, readCommitted(dialect), func(tx sqldb.Tx) error {
		now, err := h.clock(ctx, tx, dialect)
		if err != nil {
			return err
		}
		token := ""
		if a != nil {
			token = a.token
		}
		assign, args := set(now)
		_, err = tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET "+assign+" WHERE id = ? AND version = ? AND status IN ('pending', 'running')"+noLease),
			append(args, id, version, now.UnixMilli(), token)...)
		if err != nil || a == nil {
			return err
		}
		return a.settle(ctx, tx, dialect, counts)
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

func untilRetry(d *amqpx.Delivery, cause error) time.Duration {
	if delay, ok := d.RetryDelay(cause); ok {
		return delay
	}
	return unknownRetry
}

// clock is the database's clock, by which the relays judge when to send again.
func (h *handler) clock(ctx context.Context, c sqldb.Conn, d Dialect) (time.Time, error) {
	return readClock(ctx, c, d, h.now)
}

// maxErrorText bounds last_error, in bytes.
const maxErrorText = 1024

// text is an error as last_error can hold it.
func text(err error) string {
	s := []rune(err.Error()) // invalid UTF-8 becomes the replacement character
	out := make([]byte, 0, min(len(s), maxErrorText))
	for _, r := range s {
		if r == 0 {
			continue
		}
		if len(out)+len(string(r)) > maxErrorText {
			break
		}
		out = append(out, string(r)...)
	}
	return string(out)
}
