package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// fenceOf returns the fence of a message. A message without a due time gets now as its due time.
func fenceOf(d *amqpx.Delivery, now int64) rows.Fence {
	f := rows.Fence{ID: d.ID, Version: d.Version, Due: now}
	if !d.Created.IsZero() {
		f.Created = d.Created.UnixMilli()
	}
	if !d.DueAt.IsZero() {
		f.Due = max(rows.Stored(d.DueAt), 0) // in the precision of the row, in case a test has set the task's own time
	}
	return f
}

// pass is the result of the fence for a message that may have its effect.
type pass struct {
	exchange bool  // the task is to an exchange, so finish has to make it done
	created  int64 // created_at of its row
}

// fence checks a message against its task's row. If the message may have its effect, fence makes a task
// to a queue done, and records the effect of a task to an exchange. Otherwise it returns the reason.
func fence(ctx context.Context, c rows.Conn, d *amqpx.Delivery, now int64) (p pass, why SkipReason, err error) {
	f := fenceOf(d, now)
	// The row decides whether the task's destination is a queue. The message usually shows it, but it
	// may have come through an exchange of the user, or be created by a test.
	for _, toQueue := range []bool{d.Exchange == "", d.Exchange != ""} {
		var passed bool
		if toQueue {
			p = pass{}
			passed, err = c.Done(ctx, f, now)
		} else {
			p, passed, err = fenceExchange(ctx, c, d, f, now)
		}
		if err != nil || passed {
			return p, "", err
		}
		row, err := c.Find(ctx, d.ID, now, rows.Current)
		switch {
		case err != nil:
			return pass{}, "", err
		case row.Late(f):
			return pass{}, SkipExpired, c.Expire(ctx, d.ID, d.Version, now)
		case row.ToQueue == toQueue || row.Version == 0:
			why, err = whyNot(row, f, d)
			return pass{}, why, err
		}
	}
	return pass{}, SkipStale, nil // it was replaced in the meantime
}

// fenceExchange records the effect of the message's queue. A delivery of the same
// queue at the same time waits here for the outcome of this one.
func fenceExchange(ctx context.Context, c rows.Conn, d *amqpx.Delivery, f rows.Fence, now int64) (p pass, passed bool, err error) {
	if err := c.WriteFirst(ctx); err != nil {
		return p, false, err
	}
	row, err := c.FindWorking(ctx, d.ID, now)
	if err == nil && row.Keyed && row.Status == rows.Pending {
		// Lock the task, so that a transaction that keeps it for its unique key cannot find it
		// pending and unlocked while an effect runs that has not seen that transaction's changes.
		row, err = c.Find(ctx, d.ID, now, rows.Exclusive)
	}
	if err != nil || row.ToQueue || !row.Open(f) || row.Due > f.Due || row.Status != rows.Done && row.Over {
		return p, false, err
	}
	passed, err = c.RecordEffect(ctx, rows.EffectKey{Task: d.ID, Created: row.Created, Version: d.Version, Queue: d.Queue}, now)
	return pass{true, row.Created}, passed, err
}

// finish makes a task to an exchange done after its effect in one of its queues, and keeps it from being
// replaced before that is committed. It returns a *skipError if the task was cancelled, moved or
// replaced in the meantime, so that the effect is rolled back.
func (p pass) finish(ctx context.Context, c rows.Conn, d *amqpx.Delivery, now int64) error {
	if !p.exchange {
		return nil
	}
	f := fenceOf(d, now)
	done, err := c.ExchangeDone(ctx, f, now)
	if err != nil || done {
		return err
	}
	row, err := c.Find(ctx, d.ID, now, rows.Shared)
	if err != nil || row.Version == d.Version && row.Created == p.created && row.Status == rows.Done {
		return err
	}
	return skipped(row, f, d)
}

// skipped returns the reason of whyNot as an error.
func skipped(row rows.Found, f rows.Fence, d *amqpx.Delivery) error {
	reason, err := whyNot(row, f, d)
	if err != nil {
		return err
	}
	return &skipError{reason}
}

// whyNot returns why a message did not pass the fence.
func whyNot(row rows.Found, f rows.Fence, d *amqpx.Delivery) (SkipReason, error) {
	switch {
	case row.Version == 0:
		return SkipMissing, nil
	case row.Is(f) && row.Status == rows.Pending && d.DueAt.IsZero():
		return "", &foreignError{fmt.Errorf("%w: the message has no due instant, and the task is due at %s; a test sets Delivery.DueAt to the task's instant, a publisher the header %s",
			ErrNotTask, time.UnixMilli(row.Due).UTC().Format(time.RFC3339Nano), amqpx.HeaderDue)}
	case !row.Is(f) || row.Status == rows.Pending:
		return SkipStale, nil
	case row.Status == rows.Running:
		return "", &heldError{minLease} // by a LeaseHandler of the same queue
	case row.Status == rows.Cancelled:
		return SkipCancelled, nil
	case row.Status == rows.Expired:
		return SkipExpired, nil
	case row.Status == rows.Failed && row.ToQueue && d.Redelivered:
		return "", errFailed
	case row.Status == rows.Failed:
		return SkipFailed, nil
	}
	return SkipDuplicate, nil
}

// heldError is the error of a message whose lease another attempt has.
type heldError struct{ rest time.Duration }

func (e *heldError) Error() string { return "another attempt holds the lease" }

// errFailed is the error of a message that is redelivered after its task has failed, because its
// consumer may have ended before the message was dead-lettered.
var errFailed = errors.New("the task has failed")

// skipError is the error of a message that has no effect.
type skipError struct{ reason SkipReason }

func (e *skipError) Error() string { return "no effect: " + string(e.reason) }

// foreignError is the error of a message that cannot be checked against a task. It wraps ErrNotTask.
type foreignError struct{ error }

func (e *foreignError) Unwrap() error { return e.error }

// SkipReason is the reason why a message of a task had no effect.
type SkipReason string

// The skip reasons.
const (
	SkipDuplicate SkipReason = "duplicate" // another delivery of this version had the effect (for a task to an exchange: in this queue)
	SkipStale     SkipReason = "stale"     // the task has another version, or is due later
	SkipCancelled SkipReason = "cancelled"
	SkipExpired   SkipReason = "expired" // too late for its effect, see Task.ExpiresAfter
	SkipFailed    SkipReason = "failed"
	SkipMissing   SkipReason = "missing" // the task does not exist, or no longer exists
)
