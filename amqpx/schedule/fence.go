package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// fenceOf returns the fence of a message: the values that are compared with its task's row. For a message without a due
// time, the fence contains now as the due time.
func fenceOf(d *amqpx.Delivery, now int64) rows.Fence {
	f := rows.Fence{ID: d.ID, Version: d.Version, Due: now}
	if !d.Created.IsZero() {
		f.Created = d.Created.UnixMilli()
	}
	if !d.DueAt.IsZero() {
		f.Due = max(rows.Stored(d.DueAt), 0) // milliseconds, as in the row; a test may have copied the task's exact time
	}
	return f
}

// pass is the result of the fence for a message that may take effect.
type pass struct {
	exchange bool  // the task was sent to an exchange, so finish has to mark it as done
	created  int64 // created_at of the task's row
}

// fence checks a message against its task's row. If the message may take effect, fence marks the task as done or, if
// the task was sent to an exchange, records the effect for the message's queue. If the message may not take effect,
// fence returns the reason, or an error if the message has to be postponed or dead-lettered. It marks the task as
// expired if the message is too late.
func fence(ctx context.Context, c rows.Conn, d *amqpx.Delivery, now int64) (p pass, why SkipReason, err error) {
	f := fenceOf(d, now)
	// The row contains the task's destination, which is a queue or an exchange. The delivery usually shows which of the
	// two it is, but not if a message to a queue came through one of the application's exchanges, or if a test created
	// the Delivery. So try the likely case first, then the other one.
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
			return pass{}, SkipExpired, c.Expire(ctx, f, now)
		case row.ToQueue == toQueue || row.Version == 0:
			why, err = whyNot(row, f, d)
			return pass{}, why, err
		}
	}
	return pass{}, SkipStale, nil // the task was replaced between the statements
}

// fenceExchange records the effect for the message's queue. If another delivery of the task is being handled in the
// same queue, the statement waits for that delivery's transaction.
func fenceExchange(ctx context.Context, c rows.Conn, d *amqpx.Delivery, f rows.Fence, now int64) (p pass, passed bool, err error) {
	if err := c.WriteFirst(ctx); err != nil {
		return p, false, err
	}
	row, err := c.FindWorking(ctx, d.ID, now)
	if err == nil && row.Keyed && row.Status == rows.Pending {
		// Lock the task. Without the lock, a concurrent ScheduleUnique could keep this task as the pending task of its
		// key, although its effect is already running and cannot see the changes of the transaction that called
		// ScheduleUnique.
		row, err = c.Find(ctx, d.ID, now, rows.Exclusive)
	}
	if err != nil || row.ToQueue || !row.Open(f) || row.Due > f.Due || row.Status != rows.Done && row.Over {
		return p, false, err
	}
	passed, err = c.RecordEffect(ctx, rows.EffectKey{Task: d.ID, Created: row.Created, Version: d.Version, Queue: d.Queue}, now)
	return pass{true, row.Created}, passed, err
}

// finish marks a task that was sent to an exchange as done, once the handler of one of the exchange's queues has had
// its effect. The row stays locked until the transaction commits, so the task cannot be replaced until then. If the
// task was cancelled, rescheduled or replaced in the meantime, finish returns a *skipError, and the effect is rolled
// back.
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

// skipped returns whyNot's reason as an error.
func skipped(row rows.Found, f rows.Fence, d *amqpx.Delivery) error {
	reason, err := whyNot(row, f, d)
	if err != nil {
		return err
	}
	return &skipError{reason}
}

// whyNot returns why a message did not pass the fence. It returns an error instead if the message has to be postponed
// or dead-lettered, for example because another attempt is running.
func whyNot(row rows.Found, f rows.Fence, d *amqpx.Delivery) (SkipReason, error) {
	switch {
	case row.Version == 0:
		return SkipMissing, nil
	case row.Is(f) && row.Status == rows.Pending && d.DueAt.IsZero():
		return "", &foreignError{fmt.Errorf("%w: the message has no due time, but the task is due at %s; in a test, set Delivery.DueAt to the task's due time; in a publisher, set the header %s",
			ErrNotTask, time.UnixMilli(row.Due).UTC().Format(time.RFC3339Nano), amqpx.HeaderDue)}
	case !row.Is(f) || row.Status == rows.Pending:
		return SkipStale, nil
	case row.Status == rows.Running:
		return "", &heldError{minLease} // a LeaseHandler of the same queue is working on the task
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

// heldError is returned for a message whose task is leased by another attempt.
type heldError struct {
	rest time.Duration // how much longer the lease may last
}

func (e *heldError) Error() string { return "another attempt holds the lease" }

// errFailed is returned for a message that is redelivered although its task has failed. That happens if the consumer
// stopped before it could dead-letter the message.
var errFailed = errors.New("the task has failed")

// skipError is returned for a message that has no effect.
type skipError struct{ reason SkipReason }

func (e *skipError) Error() string { return "no effect: " + string(e.reason) }

// foreignError is returned for a message that cannot be checked against a task. It wraps ErrNotTask.
type foreignError struct{ error }

func (e *foreignError) Unwrap() error { return e.error }

// SkipReason is the reason why a message of a task had no effect.
type SkipReason string

// The skip reasons.
const (
	SkipDuplicate SkipReason = "duplicate" // another delivery of this version has already taken effect (in this queue, if the task was sent to an exchange)
	SkipStale     SkipReason = "stale"     // the task has another version, or is due later
	SkipCancelled SkipReason = "cancelled"
	SkipExpired   SkipReason = "expired" // too late for its effect, see Task.ExpiresAfter
	SkipFailed    SkipReason = "failed"
	SkipMissing   SkipReason = "missing" // the task does not exist, or no longer exists
)
