package schedule

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// LeaseFunc is work whose effects are not all in one transaction: a call to a
// payment provider, an e-mail. It runs without a transaction, under a lease that is
// renewed while it runs. ctx ends when the lease is lost (the cause is ErrLeaseLost),
// because another process may begin then.
//
// The work is done at least once: when the process dies after the call and before
// the commit, it is done again. key is the same for every attempt of the task in
// this queue, also after it was revived, fired or moved; give it to the provider as
// the idempotency key of the call, so that a repetition has no second effect there.
// Only Replace, or an id that is used again, makes new work with a new key. complete, which may be nil,
// runs in the transaction that makes the task done, to store what the work
// returned.
type LeaseFunc func(ctx context.Context, d *amqpx.Delivery, key string) (complete Func, err error)

// DefaultLease is how long the lease of LeaseHandler is without WithLease.
const DefaultLease = time.Minute

// minLease leaves time for the statements that renew it.
const minLease = time.Second

// WithLease sets how long LeaseHandler's lease is; default 1 minute, at least 1
// second. It is renewed three times as often. After a crash the work begins again
// when the lease has ended.
func WithLease(d time.Duration) HandlerOption {
	return func(h *handler) { h.lease = max(d, minLease) }
}

// LeaseHandler is Handler for work that is not one transaction; see LeaseFunc. The
// task's status is running while a lease is held; it cannot be cancelled or moved
// then. A second delivery meanwhile is snoozed until the lease would end.
//
// Errors, panics, retries and dead letters are those of Handler. An attempt whose
// lease ends without an outcome counts; see PoisonError. WithGroup has no meaning
// here.
func LeaseHandler(db *sql.DB, fn LeaseFunc, opts ...HandlerOption) amqpx.Handler {
	return LeaseHandlerOn(sqldb.Of(db), func(ctx context.Context, d *amqpx.Delivery, key string) (func(context.Context, sqldb.Tx, *amqpx.Delivery) error, error) {
		complete, err := fn(ctx, d, key)
		if complete == nil || err != nil {
			return nil, err
		}
		return func(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) error {
			own, _ := sqldb.SQL(tx)
			return complete(ctx, own, d)
		}, nil
	}, opts...)
}

type leased func(context.Context, *amqpx.Delivery, string) (complete func(context.Context, sqldb.Tx, *amqpx.Delivery) error, err error)

// LeaseHandlerOn is LeaseHandler for the packages of this module that bring other
// drivers than database/sql's.
func LeaseHandlerOn(db sqldb.DB, fn func(context.Context, *amqpx.Delivery, string) (func(context.Context, sqldb.Tx, *amqpx.Delivery) error, error), opts ...HandlerOption) amqpx.Handler {
	return newLeaseHandler(db, fn, opts).handle
}

func newLeaseHandler(db sqldb.DB, fn leased, opts []HandlerOption) *leaseHandler {
	h := newHandler(db, nil, append([]HandlerOption{WithLease(DefaultLease)}, opts...))
	return &leaseHandler{handler: h, work: fn}
}

type leaseHandler struct {
	*handler

	work leased
}

// heldError says that another attempt has the lease.
type heldError struct{ rest time.Duration }

func (e *heldError) Error() string { return "another attempt holds the lease" }

// skipError says that there is nothing to do.
type skipError struct{ reason SkipReason }

func (e *skipError) Error() string { return "no effect: " + string(e.reason) }

func (h *leaseHandler) handle(ctx context.Context, d *amqpx.Delivery) (err error) {
	if err := notTask(d); err != nil {
		return err
	}
	var a *attempt
	defer func() {
		if r := recover(); r != nil {
			h.failed(ctx, d, a, fmt.Errorf("handler panicked: %v", r))
			panic(r)
		}
	}()
	a = &attempt{task: d.ID, version: d.Version, queue: d.Queue, token: rand.Text(), lease: h.lease}
	if err := h.enter(ctx, a, d); err != nil {
		return h.refused(ctx, d, err)
	}
	defer a.end()
	complete, err := h.underLease(ctx, a, d)
	if err == nil {
		err = h.complete(ctx, a, d, complete)
	}
	if skip, ok := errors.AsType[*skipError](err); ok {
		return h.skip(ctx, d, skip.reason)
	}
	if err != nil {
		h.failed(ctx, d, a, err)
	}
	return err
}

// refused is what becomes of a message whose attempt did not begin.
func (h *leaseHandler) refused(ctx context.Context, d *amqpx.Delivery, err error) error {
	if skip, ok := errors.AsType[*skipError](err); ok {
		return h.skip(ctx, d, skip.reason)
	}
	if held, ok := errors.AsType[*heldError](err); ok {
		return amqpx.Snooze(held.rest + time.Second)
	}
	if errors.Is(err, ErrNotTask) {
		return amqpx.Reject(err)
	}
	if errors.Is(err, ErrPoison) {
		err = amqpx.Reject(err)
	}
	h.failed(ctx, d, nil, err)
	return err
}

func (h *handler) skip(ctx context.Context, d *amqpx.Delivery, reason SkipReason) error {
	if h.onSkip != nil {
		h.onSkip(ctx, d, reason)
	}
	return nil
}

// beginRunning takes the task for a lease. Of a task to an exchange other queues
// may have done their part, or failed.
const beginRunning = "UPDATE rabbitdelay_tasks SET status = 'running', finished_at = NULL, updated_at = ?" + fenced +
	" AND (status = 'pending' OR status = 'failed' AND exchange <> '') AND "

// startLease makes the task running, unless it is. It returns when the
// task was created.
func (h *handler) startLease(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery, now int64) (created int64, err error) {
	defer wrote(h.db)
	if _, err := tx.ExecContext(ctx, dialect.Bind(beginRunning+unexpired(dialect, now)), append([]any{now}, fenceArgs(d, now)...)...); err != nil {
		return 0, err
	}
	task, err := look(ctx, tx, dialect, d.ID, time.UnixMilli(now), "")
	if err != nil {
		return 0, err
	}
	if task.expired(d) {
		if err := expire(ctx, tx, dialect, d, now); err != nil {
			return 0, err
		}
		return 0, &skipError{SkipExpired}
	}
	if task.isOf(d) && task.due <= dueOf(d, now) && (task.status == StatusRunning || task.status == StatusDone && !task.toQueue) {
		return task.created, nil
	}
	reason, err := task.reason(d)
	if err != nil {
		return 0, err
	}
	return 0, &skipError{reason}
}

// underLease runs the work and renews the lease meanwhile.
func (h *leaseHandler) underLease(ctx context.Context, a *attempt, d *amqpx.Delivery) (func(context.Context, sqldb.Tx, *amqpx.Delivery) error, error) {
	ctx, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.heartbeat(ctx, a, lose)
	}()
	defer func() { lose(nil); <-ended }() // also when the work panics
	complete, err := h.work(ctx, d, a.idempotencyKey())
	if err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return complete, err
}

// idempotencyKey identifies the work to a provider: the task, which an id and the
// instant of its creation make unique, and the queue, whose handler is one of several
// that may work on it. The version is no part of it: what is revived, fired or moved
// after an attempt began is the same work.
func (a *attempt) idempotencyKey() string {
	return fmt.Sprintf("%s.%d.%s", a.task, a.created, a.queue)
}

// heartbeat renews the lease until ctx ends. It calls lose when somebody else may
// have it: another attempt's token is there, or it could not be renewed in time.
func (h *handler) heartbeat(ctx context.Context, a *attempt, lose context.CancelCauseFunc) {
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
		ok, err := h.renew(ctx, a, until)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && ok:
			until = began.Add(a.lease)
		case err == nil:
			lose(fmt.Errorf("%w: another attempt has task %s", ErrLeaseLost, a.task))
			return
		case !time.Now().Before(until):
			lose(fmt.Errorf("%w: it could not be renewed: %w", ErrLeaseLost, err))
			return
		}
	}
}

// renew tells whether the lease is still the attempt's. The statement ends with the
// lease at the latest.
func (h *handler) renew(ctx context.Context, a *attempt, until time.Time) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	dialect, err := h.dialect.Resolve(ctx, h.db)
	if err != nil {
		return false, err
	}
	end := a.clock.Add(time.Since(a.begun) + a.lease).UnixMilli()
	return changed(h.db.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_effects SET lease_until = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL"),
		append(append([]any{end}, a.key()...), a.token)...))
}

// complete makes the task done, if the lease is still this attempt's. The task is
// locked last, so that the handlers of other queues do not wait for fn.
func (h *leaseHandler) complete(ctx context.Context, a *attempt, d *amqpx.Delivery, fn func(context.Context, sqldb.Tx, *amqpx.Delivery) error) error {
	return sqldb.Transact(ctx, h.db, h.txOpts, func(tx sqldb.Tx) error {
		dialect, err := h.dialect.Resolve(ctx, tx)
		if err != nil {
			return err
		}
		now := h.now().UnixMilli()
		ours, err := changed(tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_effects SET done_at = ?, lease_until = 0, updated_at = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL"),
			append(append([]any{now, now}, a.key()...), a.token)...))
		if err != nil {
			return err
		}
		if !ours {
			return fmt.Errorf("%w: another attempt has task %s", ErrLeaseLost, a.task)
		}
		w := &work{id: d.ID, finish: func(ctx context.Context, c sqldb.Conn) error { return a.done(ctx, c, dialect, d, now) }}
		if fn != nil {
			if err := a.stillOpen(ctx, tx, dialect, d, ""); err != nil {
				return err
			}
			if err := fn(w.within(ctx), tx, d); err != nil {
				return err
			}
		}
		return w.end(ctx, tx)
	})
}

// done makes the task done. It is pending again if the lease has ended and nobody has
// begun since.
func (a *attempt) done(ctx context.Context, c sqldb.Conn, dialect Dialect, d *amqpx.Delivery, now int64) error {
	_, err := c.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ? "+
		"WHERE id = ? AND version = ? AND created_at = ? AND (status IN ('running', 'pending') OR status = 'failed' AND exchange <> '')"), now, now, a.task, a.version, a.created)
	if err != nil {
		return err
	}
	return a.stillOpen(ctx, c, dialect, d, current(dialect))
}

// stillOpen is a *skipError when the lease had ended, and then the task. lock is that
// of look.
func (a *attempt) stillOpen(ctx context.Context, tx sqldb.Conn, dialect Dialect, d *amqpx.Delivery, lock string) error {
	task, err := look(ctx, tx, dialect, a.task, a.clock, lock)
	switch {
	case err != nil:
		return err
	case task.version != a.version || task.created != a.created:
		return &skipError{SkipStale}
	case task.status == StatusRunning, task.status == StatusPending, task.status == StatusDone, task.status == StatusFailed && !task.toQueue:
		return nil
	}
	reason, err := task.reason(d)
	return errors.Join(err, &skipError{reason})
}

// noLease is the condition that nobody but the attempt of a token works on a task
// under a lease. Its parameters are the instant and the token.
const noLease = " AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects AS e WHERE e.task_id = rabbitdelay_tasks.id AND e.version = rabbitdelay_tasks.version" +
	" AND e.created_at = rabbitdelay_tasks.created_at AND e.done_at IS NULL AND e.lease_until > ? AND e.lease_token <> ?)"

// endLeases makes tasks pending again whose leases have ended: their processes have
// died. Their messages come again; now they can be cancelled, too.
func (s *Store) endLeases(ctx context.Context) error {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return err
	}
	now := s.now().UnixMilli()
	rows, err := s.db.QueryContext(ctx, d.Bind("SELECT id FROM rabbitdelay_tasks WHERE status = 'running'"+noLease+" LIMIT 1000"), now, "")
	if err != nil {
		return fmt.Errorf("looking for leases that have ended: %w", sqldb.Explain(err))
	}
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return errors.Join(err, rows.Close())
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, id := range ids {
		ended, err := changed(s.db.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_tasks SET status = 'pending', updated_at = ? WHERE id = ? AND status = 'running'"+noLease), now, id, now, ""))
		if err != nil {
			return fmt.Errorf("ending the lease of task %s: %w", id, err)
		}
		if ended {
			s.log.Warn("a lease has ended without an outcome; the task is pending again", zap.String("id", id))
		}
	}
	return nil
}
