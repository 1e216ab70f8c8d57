package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/outage"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// LeaseFunc does work whose effects are not all in one transaction, such as a call to a payment provider or an e-mail.
// It runs without a transaction, under a lease that is renewed while it runs. When the lease is lost, ctx ends with the
// cause ErrLeaseLost, because another process may then start the same work.
//
// The work is done at least once. If the process dies after the work and before the commit, the work is done again. key
// is the same for every attempt of the task in this queue, even after the task was revived, rescheduled or run early.
// Pass it to the provider as the idempotency key of the call, so that a repeated call has no second effect there. Only
// Replace, or reusing the id for a new task, results in a new key. complete, which may be nil, runs in the transaction
// that marks the task as done. Use it to store the result of the work.
type LeaseFunc func(ctx context.Context, d *amqpx.Delivery, key string) (complete Func, err error)

// defaultLease is the duration of LeaseHandler's lease without WithLease.
const defaultLease = time.Minute

// minLease is the shortest lease. It leaves enough time for the statements that renew it.
const minLease = time.Second

// WithLease sets the duration of LeaseHandler's lease. The default is 1 minute, the minimum 1 second. While the work
// runs, the lease is renewed three times within its duration. After a crash, another process starts the work again when
// the lease has ended. A short lease therefore means a short delay after a crash, while a long lease tolerates longer
// outages of the database. LeaseHandler returns nil for a d below a microsecond, such as WithLease(30), which probably
// lacks a unit.
func WithLease(d time.Duration) HandlerOption {
	return func(h *handler) { h.lease, h.noUnit = max(d, minLease), units.Duration(d) != "" }
}

// LeaseHandler wraps fn for Client.Consume, like Handler, for work that does not fit into one transaction; see
// LeaseFunc. While an attempt holds the lease, the task's status is running, and the task cannot be cancelled or
// rescheduled. A second delivery during that time is snoozed until the current lease would end.
//
// LeaseHandler treats errors, panics, retries and dead letters like Handler. An attempt whose lease ends without an
// outcome counts; see ErrPoison. WithGroup has no effect. If fn, the database or an option is nil, or if the lease has
// no unit, LeaseHandler returns nil, and Consume reports the error.
func LeaseHandler(db Database, fn LeaseFunc, opts ...HandlerOption) amqpx.Handler {
	if fn == nil || sqldb.IsNil(db) || lacksOption(opts) {
		return nil
	}
	h := newLeaseHandler(sqldb.Of(db), fn, opts)
	if h.noUnit {
		return nil
	}
	return h.handle
}

func newLeaseHandler(db sqldb.DB, fn LeaseFunc, opts []HandlerOption) *leaseHandler {
	h := newHandler(db, nil, append([]HandlerOption{WithLease(defaultLease)}, opts...))
	return &leaseHandler{handler: h, work: fn}
}

type leaseHandler struct {
	*handler

	work LeaseFunc
}

func (h *leaseHandler) handle(ctx context.Context, d *amqpx.Delivery) error {
	if err := cmp.Or(notTask(d), h.tooEarly(ctx, d)); err != nil {
		return err
	}
	a := newAttempt(d, 0, h.lease)
	return h.recordEnd(ctx, d, &a, func() error { return h.attempt(ctx, a, d) })
}

func (h *leaseHandler) attempt(ctx context.Context, a *attempt, d *amqpx.Delivery) error {
	enter := func(func()) error { return h.enter(ctx, a, d) }
	if err := outage.Wait(ctx, sqldb.Unavailable, enter); err != nil {
		return h.refused(ctx, d, err)
	}
	defer a.leaveLane()
	complete, err := h.underLease(ctx, a, d)
	if err == nil {
		err = outage.Wait(ctx, sqldb.Unavailable, func(begun func()) error { return h.complete(ctx, a, d, complete, begun) })
	}
	if late, ok := errors.AsType[*outage.Error](err); ok {
		err = late.Err // the attempt counts, because its work has been done
	}
	return h.conclude(ctx, d, a, err)
}

// refused returns the handler's error for a message that did not get the lease.
func (h *leaseHandler) refused(ctx context.Context, d *amqpx.Delivery, err error) error {
	if held, ok := errors.AsType[*heldError](err); ok {
		return amqpx.Snooze(held.rest + time.Second)
	}
	if errors.Is(err, ErrPoison) {
		return h.notBegun(ctx, d, err)
	}
	return h.conclude(ctx, d, nil, err)
}

// underLease runs the work, and renews the lease while it runs.
func (h *leaseHandler) underLease(ctx context.Context, a *attempt, d *amqpx.Delivery) (Func, error) {
	ctx, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.keepLease(ctx, a, lose)
	}()
	defer func() { lose(nil); <-ended }() // even if the work panics
	complete, err := h.work(ctx, d, a.idempotencyKey())
	if err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return complete, err
}

// idempotencyKey identifies the work to a provider. It consists of the task's id and creation time, which make the task
// unique, and the queue, because the handlers of several queues may work on the task. It does not contain the version,
// because reviving, rescheduling or running a task early after an attempt has started does not change the work.
func (a *attempt) idempotencyKey() string {
	return fmt.Sprintf("%s.%d.%s", a.Task, a.Created, a.Queue)
}

// keepLease renews the lease until ctx ends. It calls lose when another attempt may hold the lease, which is the case
// if the row contains another token, or if the lease could not be renewed in time.
func (h *handler) keepLease(ctx context.Context, a *attempt, lose context.CancelCauseFunc) {
	ticker := time.NewTicker(a.lease / 3)
	defer ticker.Stop()
	until := a.begun.Add(a.lease)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		ours, err := h.renew(ctx, a, until)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && ours:
			until = began.Add(a.lease)
		case err == nil:
			lose(a.lost())
			return
		case !time.Now().Before(until):
			lose(fmt.Errorf("%w: the lease could not be renewed: %w", ErrLeaseLost, err))
			return
		}
	}
}

// lost returns the error for an attempt whose lease another attempt now holds.
func (a *attempt) lost() error {
	return fmt.Errorf("%w: another attempt holds the lease of task %s", ErrLeaseLost, a.Task)
}

// renew renews the lease, and reports whether the attempt still holds it. It gives up at until, when the current lease
// ends.
func (h *handler) renew(ctx context.Context, a *attempt, until time.Time) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	c, err := h.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	return c.RenewLease(ctx, a.EffectKey, a.token, a.clock.Add(time.Since(a.begun)+a.lease).UnixMilli())
}

// complete marks the task as done if this attempt still holds the lease. It locks the task only after fn, so that the
// handlers of other queues do not wait for fn. It calls begun before fn.
func (h *leaseHandler) complete(ctx context.Context, a *attempt, d *amqpx.Delivery, fn Func, begun func()) error {
	return sqldb.Transact(ctx, h.db.DB, h.txOpts, func(tx sqldb.Tx) error {
		c, err := h.db.On(ctx, tx)
		if err != nil {
			return err
		}
		now := h.nowMilli()
		ours, err := c.CompleteLease(ctx, a.EffectKey, a.token, now)
		if err != nil {
			return err
		}
		if !ours {
			return a.lost()
		}
		w := &work{id: d.ID, finish: func(ctx context.Context, c rows.Conn) error {
			if err := c.EndRunning(ctx, a.EffectKey, now); err != nil {
				return err
			}
			return a.stillOpen(ctx, c, d, rows.Current)
		}}
		if fn != nil {
			if err := a.stillOpen(ctx, c, d, rows.Unlocked); err != nil {
				return err
			}
			begun()
			if err := fn.call(withWork(ctx, w), tx, d); err != nil {
				return err
			}
		}
		return w.finishOnce(ctx, c)
	})
}

// stillOpen returns a *skipError if the effect of the attempt must not be committed, for example because the task was
// rescheduled or cancelled during the work. That is possible if the lease ended before the work did, because the
// sweeper then makes the task pending again. A task that was sent to an exchange may be done or failed by then, because
// that is the result of another queue's handler.
func (a *attempt) stillOpen(ctx context.Context, c rows.Conn, d *amqpx.Delivery, l rows.Lock) error {
	task, err := c.Find(ctx, a.Task, a.clock.UnixMilli(), l)
	switch {
	case err != nil:
		return err
	case task.Version != a.Version || task.Created != a.Created:
		return &skipError{SkipStale}
	case task.Status == rows.Running, task.Status == rows.Pending, task.Status == rows.Done, task.Status == rows.Failed && !task.ToQueue:
		return nil
	}
	return skipped(task, fenceOf(d, a.clock.UnixMilli()), d)
}
