package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/outage"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Func is the effect of a task. Everything that it does with tx is committed together with the task's status, or not at
// all. It must return every error from tx, because the database may have rolled back the transaction by then, and it
// must not commit or roll back. It may run again for the same delivery if the database rolled back the transaction
// because of another one (a deadlock or a serialization failure).
type Func func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error

// HandlerOption is an option of Handler or LeaseHandler.
type HandlerOption func(*handler)

// OnSkip sets a hook that is called after a message was acknowledged without an effect, for example to count such
// messages. It runs in the goroutine that has handled the message.
func OnSkip(hook func(ctx context.Context, d *amqpx.Delivery, reason SkipReason)) HandlerOption {
	return func(h *handler) { h.onSkip = hook }
}

// OnFailure sets a hook that is called after the handler has tried to record a failed attempt in the
// task's row. final is true if no attempt follows, so that the task's status becomes failed. recordErr
// is nil if the failure was recorded.
func OnFailure(hook func(ctx context.Context, d *amqpx.Delivery, err error, final bool, recordErr error)) HandlerOption {
	return func(h *handler) { h.onFailure = hook }
}

// WithDialect sets the dialect of the database. Use it if the handler cannot detect the dialect.
func WithDialect(d Dialect) HandlerOption { return func(h *handler) { h.given = sqldb.Dialect(d) } }

// WithNow sets this process's wall clock. The default, also for nil, is time.Now. Tests use it to simulate a wrong
// clock.
func WithNow(now func() time.Time) HandlerOption {
	return func(h *handler) {
		if now != nil {
			h.local = now
		}
	}
}

// WithDatabaseNow replaces the database's clock, as Config.DatabaseNow does for a store. A test in virtual time that
// uses a database server passes time.Now.
func WithDatabaseNow(now func() time.Time) HandlerOption {
	return func(h *handler) { h.own = now }
}

// WithTxOptions sets the options of the transactions, such as the isolation level. The default is the database's, and
// the handler works correctly at every level. For messages that came through an exchange, the default on MySQL and
// MariaDB is READ COMMITTED. At REPEATABLE READ, the handler of such a message may not see the changes of a transaction
// whose ScheduleUnique kept the pending task.
func WithTxOptions(opts *sql.TxOptions) HandlerOption { return func(h *handler) { h.txOpts = opts } }

// Handler wraps fn for Client.Consume. For each message it opens a transaction whose first statement marks the task as
// done if it is pending and has the message's version. If that succeeds, fn runs and the transaction is committed.
// Otherwise, because the message is a duplicate or stale or the task was cancelled, the message is acknowledged without
// an effect.
//
// A task that is sent to an exchange takes effect once in each queue that receives the message. Its status becomes done
// with the first of these effects, and the failure of another queue's handler does not change that. A message has no
// effect if it is still waiting when the task is replaced, or when Retention.Keep has passed since the first effect.
// The effects in different queues do not wait for each other, except on SQLite, which has only one writer. A cancel or
// reschedule is possible until the first effect is committed, and rolls back effects that are still running.
//
// An error or a panic in fn rolls back the transaction and is recorded in the task's row: the number of attempts, the
// last error, and the status failed if it was the last attempt (Delivery.MaxAttempts) or the error came from
// amqpx.Reject. Handler returns the error, so that the message is retried or dead-lettered, and the sweeper does not
// send the task again before the retry is due. A message that does not belong to a task is rejected with ErrNotTask,
// and so is a message without a due time (Delivery.DueAt, the header rabbitdelay-due) before its task is due.
//
// An attempt that crashes its process has no outcome that could be recorded. Therefore an attempt of a
// redelivered message is recorded before it runs. When MaxAttempts such attempts have ended
// without an outcome, the task fails and the message is rejected with ErrPoison. Messages that
// were being handled at the same time as such a message are then tried one at a time in each process,
// so that they are not mistaken for the cause.
//
// A message that arrives before its task is due by the database's clock is returned to the broker for
// the rest of the delay, and does not count as an attempt.
//
// If fn, the database or an option is nil, Handler returns nil, and Consume reports the error. With a pgx pool, use
// pgxtx.TaskHandler, or service.TaskHandler, which suits the service's database.
//
// To test the handler, call it with a Delivery that has ID, Version (1 for a task that was never rescheduled) and
// DueAt, the task's due time, which may be in the future. For a task that is sent to an exchange, also set Queue.
func Handler(db Database, fn Func, opts ...HandlerOption) amqpx.Handler {
	if fn == nil || sqldb.IsNil(db) || lacksOption(opts) {
		return nil
	}
	return newHandler(sqldb.Of(db), fn, opts).handle
}

func lacksOption(opts []HandlerOption) bool {
	return slices.ContainsFunc(opts, func(o HandlerOption) bool { return o == nil })
}

// call runs fn with the transaction in the type that fn expects; see sqldb.Hand.
func (fn Func) call(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) error {
	ctx, own := sqldb.Hand(ctx, tx)
	return fn(ctx, own, d)
}

func newHandler(db sqldb.DB, fn Func, opts []HandlerOption) *handler {
	h := &handler{fn: fn, local: time.Now}
	for _, o := range opts {
		o(h)
	}
	h.db = rows.Open(db, h.given, h.own)
	h.clock = polling.NewClock(h.local, h.askClock, nil)
	if h.group > 1 {
		h.gather = sqldb.NewGather(db, h.txOpts, h.group, h.together)
	}
	return h
}

type handler struct {
	db    *rows.DB
	fn    Func
	local func() time.Time // this process's clock
	own   func() time.Time // replaces the database's own clock; see WithDatabaseNow
	clock *polling.Clock   // the database's clock

	group  int
	gather *sqldb.Gather[piece] // nil: each task has its own transaction

	given     sqldb.Dialect
	txOpts    *sql.TxOptions
	lease     time.Duration // the duration of LeaseHandler's lease
	noUnit    bool          // whether the lease was given without its unit
	onSkip    func(context.Context, *amqpx.Delivery, SkipReason)
	onFailure func(context.Context, *amqpx.Delivery, error, bool, error)
}

func (h *handler) handle(ctx context.Context, d *amqpx.Delivery) error {
	if err := cmp.Or(notTask(d), h.tooEarly(ctx, d)); err != nil {
		return err
	}
	var a *attempt
	return h.recordEnd(ctx, d, &a, func() error { return h.attempt(ctx, d, &a) })
}

// attempt handles a task's message. If the message was redelivered, the attempt is recorded before it runs, and *at is
// set to that record, so that recordEnd can end it after a panic.
func (h *handler) attempt(ctx context.Context, d *amqpx.Delivery, at **attempt) error {
	var a *attempt
	var err error
	if d.Redelivered {
		err = outage.Wait(ctx, sqldb.Unavailable, func(func()) (err error) {
			a, err = h.suspect(ctx, d)
			*at = a
			return err
		})
		if err != nil {
			return h.notBegun(ctx, d, err)
		}
		defer a.leaveLane()
	}
	var skipped SkipReason
	alone := func() error {
		return outage.Wait(ctx, sqldb.Unavailable, func(begun func()) (err error) {
			skipped, err = h.alone(ctx, d, begun)
			return err
		})
	}
	if h.gather != nil && d.Exchange == "" && a == nil {
		err = h.gather.Do(ctx, piece{ctx, d}, alone)
	} else {
		err = alone()
	}
	if err == nil && skipped != "" {
		err = &skipError{skipped}
	}
	return h.conclude(ctx, d, a, err)
}

// alone runs the effect of one task in a separate transaction. If the task has no effect, skipped is the reason, and
// the transaction is committed anyway, to keep what the fence has written, such as the status expired. The function
// begun is called before the effect.
func (h *handler) alone(ctx context.Context, d *amqpx.Delivery, begun func()) (skipped SkipReason, err error) {
	opts, err := h.optionsFor(ctx, d)
	if err != nil {
		return "", err
	}
	err = sqldb.Transact(ctx, h.db.DB, opts, func(tx sqldb.Tx) error {
		c, err := h.db.On(ctx, tx)
		if err != nil {
			return err
		}
		var p pass
		if p, skipped, err = fence(ctx, c, d, h.nowMilli()); err != nil {
			return fmt.Errorf("task %s: %w", d.ID, err)
		}
		if skipped != "" {
			return nil
		}
		begun()
		w := &work{id: d.ID, finish: func(ctx context.Context, c rows.Conn) error { return p.finish(ctx, c, d, h.nowMilli()) }}
		if err := h.fn.call(withWork(ctx, w), tx, d); err != nil {
			return err
		}
		return w.finishOnce(ctx, c)
	})
	return skipped, err
}

// optionsFor returns the transaction options for a message, which depend on whether it came through an
// exchange.
func (h *handler) optionsFor(ctx context.Context, d *amqpx.Delivery) (*sql.TxOptions, error) {
	if h.txOpts != nil || d.Exchange == "" {
		return h.txOpts, nil
	}
	c, err := h.db.Conn(ctx)
	return c.FreshReads(), err
}

// conclude decides what happens to a message whose handling ended with err, and returns the handler's error for it.
func (h *handler) conclude(ctx context.Context, d *amqpx.Delivery, a *attempt, err error) error {
	if err == nil {
		return nil
	}
	if skip, ok := errors.AsType[*skipError](err); ok {
		if h.onSkip != nil {
			h.onSkip(ctx, d, skip.reason)
		}
		return nil
	}
	if held, ok := errors.AsType[*heldError](err); ok {
		return amqpx.Snooze(held.rest)
	}
	if errors.Is(err, errFailed) {
		return h.deadLetter(ctx, d)
	}
	if _, ok := errors.AsType[*outage.Error](err); ok {
		return h.postpone(ctx, d, a)
	}
	if _, ok := errors.AsType[*foreignError](err); ok {
		return amqpx.Reject(err)
	}
	err = d.ApplyPolicy(err)
	h.failed(ctx, d, a, err)
	return err
}

// deadLetter dead-letters the message of a failed task, with the error of the task's last attempt.
func (h *handler) deadLetter(ctx context.Context, d *amqpx.Delivery) error {
	c, err := h.db.Conn(ctx)
	if err == nil {
		var task *rows.Task
		if task, err = c.Get(ctx, d.ID); err == nil {
			err = errors.New(task.LastError)
			if d.MaxAttempts > 0 && d.Attempt >= d.MaxAttempts {
				return err
			}
			return amqpx.Reject(err)
		}
	}
	return amqpx.Reject(fmt.Errorf("%w, but reading its error failed: %w", errFailed, err))
}

// postpone returns a message to the broker, because the database has been unavailable for too long. The attempt does
// not count.
func (h *handler) postpone(ctx context.Context, d *amqpx.Delivery, a *attempt) error {
	err := amqpx.Snooze(outage.SnoozeFor)
	h.failed(ctx, d, a, err)
	return err
}

// notBegun returns the handler's error for a message whose attempt could not start.
func (h *handler) notBegun(ctx context.Context, d *amqpx.Delivery, err error) error {
	if _, ok := errors.AsType[*outage.Error](err); ok {
		return h.postpone(ctx, d, nil)
	}
	if errors.Is(err, ErrPoison) {
		err = amqpx.Reject(err)
	}
	h.failed(ctx, d, nil, err)
	return err
}

// recordEnd runs handle. If handle panics or calls runtime.Goexit, recordEnd records a failure before the panic or the
// exit continues.
func (h *handler) recordEnd(ctx context.Context, d *amqpx.Delivery, a **attempt, handle func() error) error {
	returned := false
	defer func() {
		if returned {
			return
		}
		r := recover()
		if r == nil {
			h.failed(ctx, d, *a, errors.New("the handler "+guard.Goexit))
			return
		}
		h.failed(ctx, d, *a, fmt.Errorf("handler panicked: %v", r))
		panic(r)
	}()
	err := handle()
	returned = true
	return err
}

// notTask rejects a message that cannot belong to a task, for example because its id is longer than a task's id.
// Without this check, such an id would cause a database error, and the message would be retried.
func notTask(d *amqpx.Delivery) error {
	if rows.CheckID(d.ID) == "" && d.Version >= 1 {
		return nil
	}
	return amqpx.Reject(fmt.Errorf("%w: message %q has version %d, expected a task's id and a version of 1 or more; only messages that package schedule sends belong in queue %s",
		ErrNotTask, d.ID, d.Version, d.Queue))
}

// clockSlack is the amount by which a message may be early without tooEarly rejecting it. Such a difference may result
// from the adjustment of a clock.
const clockSlack = 20 * time.Millisecond

// tooEarly returns an error that sends a message back to the broker if its task is not due yet by the database's clock.
// It accepts retries, because the consumer has already waited for their delay, and a Delivery that a test has created.
func (h *handler) tooEarly(ctx context.Context, d *amqpx.Delivery) error {
	h.clock.Refresh(ctx, h.clock.Ask)
	if _, received := d.Headers[amqpx.HeaderDue]; !received || d.DueAt.IsZero() || d.Attempt > 1 || d.Snoozes > 0 {
		return nil
	}
	if d.DueAt.Sub(h.clock.Now()) > clockSlack {
		return &duecheck.EarlyError{Offset: h.clock.Offset()}
	}
	return nil
}

// askClock reads the database's clock.
func (h *handler) askClock(ctx context.Context) (time.Time, error) {
	c, err := h.db.Conn(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return c.Clock(ctx)
}

// nowMilli returns the database's time in milliseconds since the Unix epoch.
func (h *handler) nowMilli() int64 { return h.clock.Now().UnixMilli() }
