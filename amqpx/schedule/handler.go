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
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Func is the effect of a task. Everything it does with tx commits together with
// the task's status, or not at all. It returns every error of tx, because a
// database may have undone the transaction by then, and it neither commits nor
// rolls back. It may run again for the same delivery when the database undid the
// transaction because of another one (a deadlock, a serialization failure).
type Func func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error

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

// WithDialect sets the dialect of a database that is not recognised.
func WithDialect(d Dialect) HandlerOption { return func(h *handler) { h.given = sqldb.Dialect(d) } }

// WithNow sets this process's wall clock, default time.Now: a test gives one that is wrong.
func WithNow(now func() time.Time) HandlerOption { return func(h *handler) { h.local = now } }

// WithDatabaseNow sets the clock of a database that is part of this process, as Config.DatabaseNow
// does for a store.
func WithDatabaseNow(now func() time.Time) HandlerOption {
	return func(h *handler) { h.own = now }
}

// WithTxOptions sets the isolation of the transactions; the default is the database's,
// and every level is right for the fence. Messages that came through an exchange have READ
// COMMITTED as their default on MySQL and MariaDB: at REPEATABLE READ their handler may not
// see what a transaction has changed that kept the task, see ScheduleUnique.
func WithTxOptions(opts *sql.TxOptions) HandlerOption { return func(h *handler) { h.txOpts = opts } }

// Handler wraps fn for Client.Consume. For each message it opens a transaction
// whose first statement is the fence: it makes the task done if it is pending in
// the message's version. When it is not (a duplicate, a stale message, a
// cancelled task) the message is acknowledged without an effect. Otherwise fn
// runs and the transaction commits.
//
// A task to an exchange has its effect once in each queue that gets it. It is done
// with the first of them, and another queue's failure does not change that. A
// message that waits in one queue longer than Retention.Keep after that, or until
// the task is replaced, has none. The effects in several queues do not wait for each
// other, except on SQLite, which has one writer. Such a task can be cancelled and
// moved until its first effect is committed: what runs then is undone.
//
// An error of fn, or a panic, undoes the transaction and is recorded in the
// task's row: its attempts, its last error and, when it was the last attempt
// (Delivery.MaxAttempts) or amqpx.Reject, the status failed. The error is
// returned, so the message is retried or dead-lettered; the sweeper leaves the
// task alone until the retry is due. A message that is not a task's is rejected
// with ErrNotTask, and so is one without a due instant (Delivery.DueAt, the header
// rabbitdelay-due) while its task is not due.
//
// An attempt that ends its process has no outcome that anybody could record. So an
// attempt of a message that was delivered before is recorded before it runs. When
// MaxAttempts of them ended like that, the task is failed and the message rejected
// with a *PoisonError. Messages that were handled beside such a one are tried one at
// a time in each process, so that they are not taken for the cause.
//
// A message that comes before its task is due by the database's clock is sent back to
// the broker for the rest, and is no attempt.
//
// Without fn, or with a nil database or option, there is no Handler, and Consume says so. On a pool of pgx use
// pgxtx.TaskHandler, or service.TaskHandler, which fits the service's database.
//
// To test the handler, call it with a Delivery that has ID, Version (1 for a
// task that was never moved) and DueAt, the task's instant, which may be in the
// future; for a task to an exchange also Queue.
func Handler(db Database, fn Func, opts ...HandlerOption) amqpx.Handler {
	if fn == nil || sqldb.IsNil(db) || lacksOption(opts) {
		return nil
	}
	return newHandler(sqldb.Of(db), fn, opts).handle
}

func lacksOption(opts []HandlerOption) bool {
	return slices.ContainsFunc(opts, func(o HandlerOption) bool { return o == nil })
}

// call runs fn in a transaction of database/sql or of another package, see sqldb.Hand.
func (fn Func) call(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) error {
	ctx, own := sqldb.Hand(ctx, tx)
	return fn(ctx, own, d)
}

func newHandler(db sqldb.DB, fn Func, opts []HandlerOption) *handler {
	h := &handler{fn: fn, local: time.Now, own: time.Now}
	for _, o := range opts {
		o(h)
	}
	h.db = rows.Open(db, h.given)
	h.clock = pace.NewClock(h.local, h.askClock, nil)
	if h.group > 1 {
		h.gather = sqldb.NewGather(db, h.txOpts, h.group, h.together)
	}
	return h
}

type handler struct {
	db    *rows.DB
	fn    Func
	local func() time.Time // this process's clock
	own   func() time.Time // the clock of a database that is part of this process
	clock *pace.Clock      // the database's

	group  int
	gather *sqldb.Gather[piece] // nil: each task has a transaction of its own

	given     sqldb.Dialect
	txOpts    *sql.TxOptions
	lease     time.Duration // of LeaseHandler
	onSkip    func(context.Context, *amqpx.Delivery, SkipReason)
	onFailure func(context.Context, *amqpx.Delivery, error, bool, error)
}

func (h *handler) handle(ctx context.Context, d *amqpx.Delivery) (err error) {
	if err := cmp.Or(notTask(d), h.tooEarly(ctx, d)); err != nil {
		return err
	}
	var a *attempt
	defer h.recordPanic(ctx, d, &a)
	if d.Redelivered {
		if a, err = h.suspect(ctx, d); err != nil {
			return h.notBegun(ctx, d, err)
		}
		defer a.leaveLane()
	}
	var skipped SkipReason
	alone := func() (err error) {
		skipped, err = h.alone(ctx, d)
		return err
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

// alone runs the effect of one task in a transaction of its own. A reason says why the
// task has none; what the fence wrote then is committed.
func (h *handler) alone(ctx context.Context, d *amqpx.Delivery) (skipped SkipReason, err error) {
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
		w := &work{id: d.ID, finish: func(ctx context.Context, c rows.Conn) error { return p.finish(ctx, c, d, h.nowMilli()) }}
		if err := h.fn.call(withWork(ctx, w), tx, d); err != nil {
			return err
		}
		return w.finishOnce(ctx, c)
	})
	return skipped, err
}

// optionsFor are the options of the transaction of a message that came through an exchange
// or not.
func (h *handler) optionsFor(ctx context.Context, d *amqpx.Delivery) (*sql.TxOptions, error) {
	if h.txOpts != nil || d.Exchange == "" {
		return h.txOpts, nil
	}
	c, err := h.db.Conn(ctx)
	return c.FreshReads(), err
}

// conclude is what becomes of a message that was handled, with err.
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
	if _, ok := errors.AsType[*foreignError](err); ok {
		return amqpx.Reject(err)
	}
	err = d.Verdict(err)
	h.failed(ctx, d, a, err)
	return err
}

// deadLetter ends the message of a task that has failed, with the error of its last attempt.
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
	return amqpx.Reject(fmt.Errorf("%w, and its error cannot be read: %w", errFailed, err))
}

// notBegun is what becomes of a message whose attempt could not begin.
func (h *handler) notBegun(ctx context.Context, d *amqpx.Delivery, err error) error {
	if errors.Is(err, ErrPoison) {
		err = amqpx.Reject(err)
	}
	h.failed(ctx, d, nil, err)
	return err
}

// recordPanic is deferred. It records a panic as a failure, and goes on with it.
func (h *handler) recordPanic(ctx context.Context, d *amqpx.Delivery, a **attempt) {
	if r := recover(); r != nil {
		h.failed(ctx, d, *a, fmt.Errorf("handler panicked: %v", r))
		panic(r)
	}
}

// notTask rejects a message that no task can have sent. An id that no task can have
// would be an error of the database, and be tried again.
func notTask(d *amqpx.Delivery) error {
	if rows.CheckID(d.ID) == "" && d.Version >= 1 {
		return nil
	}
	return amqpx.Reject(fmt.Errorf("%w: message %q has version %d, expected a task's id and a version of 1 or more; only what package schedule sends belongs into queue %s",
		ErrNotTask, d.ID, d.Version, d.Queue))
}

// clockSlack is a difference that adjusting clocks may make.
const clockSlack = 20 * time.Millisecond

// tooEarly returns the error that sends back a message whose task is due later by the
// database's clock. The delay before a retry is the same by every clock, and the consumer has seen to
// it; a Delivery that a test made may be early.
func (h *handler) tooEarly(ctx context.Context, d *amqpx.Delivery) error {
	h.clock.Refresh(ctx, h.clock.Ask)
	if _, received := d.Headers[amqpx.HeaderDue]; !received || d.DueAt.IsZero() || d.Attempt > 1 || d.Snoozes > 0 {
		return nil
	}
	if d.DueAt.Sub(h.clock.Now()) > clockSlack {
		return &lasthop.EarlyError{Offset: h.clock.Offset()}
	}
	return nil
}

// askClock reads the database's clock.
func (h *handler) askClock(ctx context.Context) (time.Time, error) {
	c, err := h.db.Conn(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return c.Clock(ctx, h.own)
}

// nowMilli is the database's instant in epoch milliseconds.
func (h *handler) nowMilli() int64 { return h.clock.Now().UnixMilli() }
