package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Func is the effect of a task. Everything it does with tx commits together with
// the task's status, or not at all. It returns every error of tx, because a
// database may have undone the transaction by then, and it neither commits nor
// rolls back. It may run again for the same delivery when the database undid the
// transaction because of another one (a deadlock, a serialization failure). To
// make the task recur, schedule it again in tx with Replace.
type Func func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error

// SkipReason says why a message of a task had no effect.
type SkipReason string

// The reasons there are.
const (
	SkipDuplicate SkipReason = "duplicate" // the task was done by another delivery of this version
	SkipStale     SkipReason = "stale"     // the task has another version, or is due later
	SkipCancelled SkipReason = "cancelled"
	SkipFailed    SkipReason = "failed"
	SkipMissing   SkipReason = "missing" // there is no such task (any more)
)

// HandlerOption changes what Handler does.
type HandlerOption func(*handler)

// OnSkip is called after a message was acknowledged without an effect, for
// counting. It runs in the goroutine of the message.
func OnSkip(hook func(ctx context.Context, d *amqpx.Delivery, reason SkipReason)) HandlerOption {
	return func(h *handler) { h.onSkip = hook }
}

// OnFailure is called after a failed attempt was recorded in the task's row;
// final is true if the task's status is failed now. recordErr is nil if the
// failure was recorded.
func OnFailure(hook func(ctx context.Context, d *amqpx.Delivery, err error, final bool, recordErr error)) HandlerOption {
	return func(h *handler) { h.onFailure = hook }
}

// WithRetryWindow sets how long after a failed attempt the sweeper leaves the task to
// the consumer's own retries; make it longer than the consumer's longest
// back-off. Default 15 minutes.
func WithRetryWindow(d time.Duration) HandlerOption {
	return func(h *handler) { h.retryWindow = d }
}

// WithDialect sets the dialect of a database that is not recognised.
func WithDialect(d Dialect) HandlerOption { return func(h *handler) { h.given = d } }

// WithTxOptions sets the isolation of the transactions; the default is the database's,
// and every level is right for the fence.
func WithTxOptions(opts *sql.TxOptions) HandlerOption { return func(h *handler) { h.txOpts = opts } }

// Handler wraps fn for Client.Consume. For each message it opens a transaction
// whose first statement is the fence: it makes the task done if it is pending in
// the message's version. When it is not (a duplicate, a stale message, a
// cancelled task) the message is acknowledged without an effect. Otherwise fn
// runs and the transaction commits.
//
// An error of fn, or a panic, undoes the transaction and is recorded in the
// task's row: its attempts, its last error and, when it was the last attempt
// (Delivery.MaxAttempts) or amqpx.Reject, the status failed. The error is
// returned, so the message is retried or dead-lettered. A message that is not a
// task's is rejected with ErrNotTask, and so is one without a due instant
// (Delivery.DueAt, the header rabbitdelay-due) while its task is not due.
//
// To test the handler, call it with a Delivery that has ID, Version (1 for a
// task that was never moved) and DueAt, the task's instant, which may be in the
// future.
func Handler(db *sql.DB, fn Func, opts ...HandlerOption) amqpx.Handler {
	return newHandler(db, fn, opts).handle
}

func newHandler(db *sql.DB, fn Func, opts []HandlerOption) *handler {
	h := &handler{db: db, fn: fn, now: time.Now, retryWindow: 15 * time.Minute}
	for _, o := range opts {
		o(h)
	}
	h.dialect = sqldb.NewResolver(db, h.given)
	if h.group > 1 {
		h.gather = sqldb.NewGather(db, h.txOpts, h.group, h.together)
	}
	return h
}

type handler struct {
	db      *sql.DB
	fn      Func
	dialect *sqldb.Resolver
	now     func() time.Time

	group  int
	gather *sqldb.Gather[piece] // nil: each task has a transaction of its own

	given       Dialect
	txOpts      *sql.TxOptions
	retryWindow time.Duration
	onSkip      func(context.Context, *amqpx.Delivery, SkipReason)
	onFailure   func(context.Context, *amqpx.Delivery, error, bool, error)
}

func (h *handler) handle(ctx context.Context, d *amqpx.Delivery) (err error) {
	// An id that no task can have would be an error of the database, and be tried again.
	if checkID(d.ID) != nil || d.Version < 1 {
		return amqpx.Reject(fmt.Errorf("%w: message %q has version %d, expected a task's id and a version of 1 or more; only what package schedule sends belongs into queue %s",
			ErrNotTask, d.ID, d.Version, d.Queue))
	}
	defer func() {
		if r := recover(); r != nil {
			h.failed(ctx, d, fmt.Errorf("handler panicked: %v", r))
			panic(r)
		}
	}()
	var skipped SkipReason
	var foreign bool
	alone := func() error {
		return sqldb.Transact(ctx, h.db, h.txOpts, func(tx *sql.Tx) error {
			var err error
			if skipped, err = h.fence(ctx, tx, d); err != nil {
				foreign = errors.Is(err, ErrNotTask)
				return fmt.Errorf("task %s: %w", d.ID, sqldb.Explain(err))
			}
			if skipped != "" {
				return nil
			}
			return h.fn(ctx, tx, d)
		})
	}
	if h.gather != nil {
		err = h.gather.Do(ctx, piece{ctx, d}, alone)
	} else {
		err = alone()
	}
	switch {
	case foreign:
		return amqpx.Reject(err)
	case err != nil:
		h.failed(ctx, d, err)
	case skipped != "" && h.onSkip != nil:
		h.onSkip(ctx, d, skipped)
	}
	return err
}

// fence makes the task done. It is the first statement of the transaction, so
// that a concurrent delivery or change of the task waits here for the outcome of
// this one, and a deferred transaction of SQLite takes its write lock at once.
//
// The version alone would do while ids are not used again. The due instant keeps
// a message of an older task of the same id, whose row has been deleted, from
// firing the new one early.
func (h *handler) fence(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) (SkipReason, error) {
	dialect, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return "", err
	}
	now := h.now().UnixMilli()
	res, err := tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ? WHERE id = ? AND version = ? AND status = 'pending' AND due_at <= ?"),
		now, now, d.ID, d.Version, dueOf(d, now))
	if err != nil {
		return "", err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return "", err
	}
	var version, due int64
	var status Status
	err = tx.QueryRowContext(ctx, dialect.Bind("SELECT version, status, due_at FROM rabbitdelay_tasks WHERE id = ?"), d.ID).Scan(&version, &status, &due)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return SkipMissing, nil
	case err != nil:
		return "", err
	case version == d.Version && status == StatusPending && d.DueAt.IsZero():
		return "", fmt.Errorf("%w: the message has no due instant, and the task is due at %s; a test sets Delivery.DueAt to the task's instant, a publisher the header %s",
			ErrNotTask, time.UnixMilli(due).UTC().Format(time.RFC3339Nano), amqpx.HeaderDue)
	case version != d.Version || status == StatusPending:
		return SkipStale, nil
	case status == StatusCancelled:
		return SkipCancelled, nil
	case status == StatusFailed:
		return SkipFailed, nil
	}
	return SkipDuplicate, nil
}

// recordTimeout bounds the recording of a failure, which may have to happen when
// the handler's context is about to end.
const recordTimeout = 5 * time.Second

// failed records a failed attempt. An attempt that was cut off by the end of the
// consumer is none: its message goes back to the queue as it was.
func (h *handler) failed(ctx context.Context, d *amqpx.Delivery, cause error) {
	if ctx.Err() != nil {
		return
	}
	final := amqpx.IsRejected(cause) || (d.MaxAttempts > 0 && d.Attempt >= d.MaxAttempts)
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	err := h.record(ctx, d, cause, final)
	if h.onFailure != nil {
		h.onFailure(ctx, d, cause, final, err)
	}
}

func (h *handler) record(ctx context.Context, d *amqpx.Delivery, cause error, final bool) error {
	dialect, err := h.dialect.Resolve(ctx, h.db)
	if err != nil {
		return err
	}
	now := h.now()
	set := "attempts = CASE WHEN attempts < ? THEN ? ELSE attempts END, last_error = ?, updated_at = ?"
	args := []any{d.Attempt, d.Attempt, text(cause), now.UnixMilli()}
	if final {
		set += ", status = 'failed', finished_at = ?"
		args = append(args, now.UnixMilli())
	} else {
		// The relay may not have marked the row yet; it leaves rows alone that a
		// handler holds.
		set += ", resend_at = CASE WHEN resend_at IS NULL OR resend_at < ? THEN ? ELSE resend_at END"
		later := now.Add(h.retryWindow).UnixMilli()
		args = append(args, later, later)
	}
	args = append(args, d.ID, d.Version)
	return sqldb.Transact(ctx, h.db, nil, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, dialect.Bind("UPDATE rabbitdelay_tasks SET "+set+" WHERE id = ? AND version = ? AND status = 'pending'"), args...)
		return err
	})
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
