package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Dialect is the name of a family of databases that understand the same SQL.
type Dialect = idempotency.Dialect

// The supported dialects.
const (
	PostgreSQL = idempotency.PostgreSQL
	MySQL      = idempotency.MySQL // and MariaDB
	SQLite     = idempotency.SQLite
)

// Executor runs the statements of a change. Pass the caller's *sql.Tx to make the change take effect when the
// transaction commits, or NoTx to make it take effect immediately in the store's own database. A *sql.DB and a
// *sql.Conn are Executors too, and so are types that wrap them, such as the transactions of sqlx, bun, gorm and ent.
// Methods return ErrNoExecutor for a nil Executor.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// NoTx is the Executor for a call outside of any transaction. The change takes effect immediately in the store's own
// database, and stays even if a transaction of the caller is rolled back later.
var NoTx Executor = noTx{}

type noTx struct{}

var errNoTx = errors.New("schedule.NoTx runs no statements; it only represents the database of a Store")

func (noTx) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, errNoTx }

func (noTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) { return nil, errNoTx }

// Database is the database of a Store or a handler: a *sql.DB, or pgxtx.Database for a pgx pool.
type Database interface {
	Executor
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// RateLimit limits the task rate of a destination, which is a queue, or an exchange with all its routing keys. The
// limit applies to the whole database, whatever the number of relays.
//
// In any second, at most PerSecond plus Burst tasks are delivered. Further tasks wait in the table, ordered by due
// time, and do not delay other destinations. A task is published about a second before the limit allows its delivery,
// and its Delivery.DueAt is the time of that delivery.
//
// Tasks that are sent again count towards the limit. Messages that a consumer sends, such as retries, do not count.
// Neither do tasks whose messages were already on the broker when the rate limit was set.
type RateLimit struct {
	Queue    string
	Exchange string
	// PerSecond is the number of tasks per second, at most 100000. It may be below 1: 0.1 means one task in ten
	// seconds. A PerSecond of 0 removes the rate limit.
	PerSecond float64
	// Burst is the number of tasks that may be delivered together after a period with fewer tasks than PerSecond. The
	// default is a tenth of PerSecond, at least 1.
	Burst int
}

// completed returns the rate limit with its defaults, or ErrConfig if it is invalid.
func (x RateLimit) completed() (RateLimit, error) {
	if _, err := laneOf(topology.Destination{Queue: x.Queue, Exchange: x.Exchange}); err != nil {
		return x, err
	}
	name := topology.Destination{Queue: x.Queue, Exchange: x.Exchange}
	if x.PerSecond != 0 && !(topology.RateLimit{PerSecond: x.PerSecond, Burst: x.Burst}).Valid() {
		return x, fmt.Errorf("%w: the rate limit of %s: %v tasks a second and a burst of %d; expected 0 for no limit, or a rate from one a day to %d a second, and a burst of 0 to %d",
			ErrConfig, name, x.PerSecond, x.Burst, topology.MaxPerSecond, topology.MaxPerSecond)
	}
	x.Burst = max(x.Burst, 0) // if PerSecond is 0, a negative burst has not been rejected above
	setDefault(&x.Burst, max(1, int(x.PerSecond/10)))
	return x, nil
}

// laneOf returns the lane of a destination, which is a queue, or an exchange with all its routing keys. It returns
// ErrConfig for a destination that cannot be paused or limited.
func laneOf(d topology.Destination) (rows.Lane, error) {
	switch {
	case (d.Queue == "") == (d.Exchange == ""):
		return rows.Lane{}, fmt.Errorf("%w: queue %q and exchange %q; set exactly one of them", ErrConfig, d.Queue, d.Exchange)
	case d.RoutingKey != "":
		return rows.Lane{}, fmt.Errorf("%w: exchange %q with routing key %q; a pause or rate limit applies to all routing keys of an exchange, so omit the routing key", ErrConfig, d.Exchange, d.RoutingKey)
	case len(d.Queue+d.Exchange) > rows.MaxName || !rows.IsText(d.Queue+d.Exchange):
		return rows.Lane{}, fmt.Errorf("%w: queue %.300q and exchange %.300q; expected at most %d bytes of UTF-8 without NUL", ErrConfig, d.Queue, d.Exchange, rows.MaxName)
	}
	return rows.Lane{Queue: d.Queue, Exchange: d.Exchange}, nil
}

// Sender publishes tasks. *amqpx.Client implements it.
type Sender interface {
	// SendBatch publishes messages and waits for their confirms. The error is an
	// *amqpx.BatchError with the failures by index, or an error that concerns the whole batch.
	SendBatch(ctx context.Context, msgs []amqpx.Message) error
	// MaxDelay returns the longest delay that a message may have.
	MaxDelay() time.Duration
}

// QueueInspector is an interface that a Sender may also implement. The sweeper uses it to distinguish a queue whose
// messages are waiting from a queue whose messages are lost. *amqpx.Client implements it. Without it the sweeper sends
// only a few tasks again to a queue whose consumers have stopped.
type QueueInspector interface {
	QueueInfo(ctx context.Context, queue string) (amqpx.QueueInfo, error)
}

var (
	_ Sender         = (*amqpx.Client)(nil)
	_ QueueInspector = (*amqpx.Client)(nil)
)

// Listener wakes the relay when tasks have been written, so that new tasks do not have to wait for the next poll. On
// PostgreSQL it executes LISTEN for NotifyChannel, on which a trigger on the table sends notifications. database/sql
// has no interface for notifications. pgxtx.Listener returns an implementation, and pgxtx.New sets one up
// automatically.
type Listener interface {
	// Listen calls wake once after it has started to listen, and then for every notification, until ctx ends or the
	// connection is lost. After a lost connection, Run calls Listen again. If notifications do not arrive, the error
	// wraps ErrNotNotified. Run then logs that, polls at PollInterval, and calls Listen again every 10 minutes.
	Listen(ctx context.Context, wake func()) error
}

// NotifyChannel is the channel on which PostgreSQL sends a notification when a task that is due within the next 5
// seconds is written.
const NotifyChannel = "rabbitdelay_tasks"

// Config tunes a Store. The zero value is ready to use.
type Config struct {
	// Dialect is the dialect of the database. By default it is detected.
	Dialect Dialect
	// MaxBody is the longest body that Schedule accepts, in bytes. The default is 1 MiB, and the
	// maximum is 16 MiB, RabbitMQ's own default limit.
	MaxBody int
	// Horizon is how long before its due time a task is sent to the broker. Until then it is only in the table. A task
	// that is written less than 5 seconds before its due time is sent half a second to a second before it, together
	// with others. The default is 24 hours, or the sender's MaxDelay if that is shorter. MaxDelay is also the upper
	// bound.
	//
	// With a long horizon, a task that was sent is on time even if no relay runs when it is due. With a short one, such
	// as a second, most tasks take only one delay queue, the broker keeps almost no messages, and few tasks are late
	// after a restart of the broker. But a relay has to run whenever a task is due.
	Horizon time.Duration
	// Batch is the largest number of tasks that a relay claims at a time, which means that it reserves them for
	// publishing. The default is 500, the maximum 5000.
	Batch int
	// batchBytes is the largest number of bytes of bodies and headers in one claim, except that a claim of a single
	// task may have more. The default is 16 MiB. The relay keeps up to Workers + 2 times this many bytes of tasks in
	// memory.
	batchBytes int
	// Workers is how many batches this process publishes concurrently. The default is 2.
	Workers int
	// PollInterval is the longest pause between two polls for new tasks. The default is 1 second. Tasks that are
	// scheduled through this Store, or that a Listener reports, do not wait for it.
	PollInterval time.Duration
	// Listener, optional, wakes the relay for tasks that other processes wrote.
	Listener Listener
	// PublishTimeout bounds the publishing of one batch. The default is 10 seconds.
	PublishTimeout time.Duration
	// Lease is how long a claim keeps other relays from claiming the same tasks. After a crash the
	// claimed tasks are published later by up to that duration. The default is 1 minute, or twice
	// PublishTimeout if that is longer. The minimum is twice PublishTimeout.
	Lease time.Duration
	// MaxSendFailures is the number of consecutive send failures after which a task fails because its
	// destination does not exist. The default is 6, which takes about a minute. A task with an
	// invalid message or destination fails immediately. An unreachable broker never fails a task.
	MaxSendFailures int
	// Grace is how long the sweeper waits after the due time of a task that is still pending before it may send the
	// task again. The default is 2 minutes. It should be longer than a handler takes. A task is sent again only when
	// there is evidence that consumers have moved past its message, and never while the message may still be waiting in
	// its queue; docs/guarantees-details.md lists the evidence. The pause doubles with every send.
	Grace time.Duration
	// MaxSends is the number of times that a task is sent if no handler settles it. The default is 10, the maximum 20.
	// The last pause ends no earlier than Grace x (2^MaxSends - 1) after the due time, which is 34 hours by default.
	// After that the task fails with ErrMaxSends as soon as there is evidence that consumers have received its last
	// message. Until then it stays pending and is not sent again.
	MaxSends int
	// SweepInterval is the pause between two searches for tasks to send again. The default is a quarter of Grace, at
	// most 15 seconds.
	SweepInterval time.Duration
	// RateLimits limit the rates of destinations. Run writes them to the database before it sends tasks, and they apply
	// to all relays of the database, even to relays whose own configuration has other rate limits or none: the rate
	// limit that was written last applies. A rate limit with a PerSecond of 0 removes the rate limit of its
	// destination. Destinations that are not listed keep their rate limits. See Store.SetRateLimit for rate limits that
	// are changed by hand.
	RateLimits []RateLimit
	// Retention is how long finished tasks are kept.
	Retention Retention
	// MaxClockSkew is the difference between the clocks of this process and the database beyond which a warning is
	// logged. The default is 1 second. Run measures the difference once a minute, and a store whose Run does not run
	// measures it at most once a minute as it uses the database. Handlers measure it too, but log no warning.
	MaxClockSkew time.Duration
	// clockInterval is the pause between two measurements of the clocks by Run. The default is 1 minute.
	clockInterval time.Duration
	// Destination, which may be nil, returns an error for a destination that tasks are not allowed
	// to have, in addition to the destinations that the sender rejects. A store without a sender can
	// use amqpx.Config.Listed.
	Destination func(topology.Destination) error
	// Hooks observe the store.
	Hooks Hooks
	// Now returns this process's wall clock time. The default is time.Now. Tests set it to simulate
	// a wrong clock.
	Now func() time.Time
	// DatabaseNow replaces the database's clock. By default the store asks the database server for its time, but uses
	// time.Now for SQLite and with VirtualTime. Tests set it to simulate a wrong clock.
	DatabaseNow func() time.Time
	// VirtualTime is for tests in a testing/synctest bubble. The store then uses the bubble's clock with every
	// database. Run waits until something is due or a store of the bubble writes, because polling every second would
	// make a virtual day slow. A store of pgxtx then does not use LISTEN, because time in the bubble does not pass
	// while a goroutine reads from a connection. Without VirtualTime, Run polls in a bubble with SQLite. With a database
	// server, it returns ErrClock, because a bubble's clock starts in the year 2000.
	VirtualTime bool
	// Logger receives the log messages. Use amqpx.SlogLogger for a logger of log/slog. If it is nil, nothing is logged.
	Logger *zap.Logger
}

// Retention is how long finished tasks are kept. After that the id of a task can be used again.
type Retention struct {
	Keep       time.Duration // after the task was done or cancelled, or expired; default 7 days, at least Horizon
	KeepFailed time.Duration // after the task failed; default 30 days
	Every      time.Duration // pause between two purges; default 10 minutes
	Batch      int           // rows that one statement deletes; default 1000
}

// Hooks observe a Store. Each may be nil. BeforeSchedule is called in the goroutine of the caller, and ClockSkew in the
// goroutine that has measured the clocks. The other hooks are called from the goroutines of Run. Hooks other than
// BeforeSchedule must not block. A panic in a hook is logged and has no other effect.
type Hooks struct {
	// BeforeSchedule is called with a copy of each task that is about to be written. It may add headers, such as the
	// trace context of ctx, and every message of the task will have them. Headers that would make the task impossible
	// to send are dropped.
	BeforeSchedule func(ctx context.Context, t *Task)
	// Relayed reports that the publishes of n tasks were confirmed. resent is true if the sweeper sent these tasks
	// again.
	Relayed func(n int, resent bool)
	// SendFailed reports a task that could not be sent, or that was sent MaxSends times without being settled
	// (ErrMaxSends). failed is true if the task's status is now failed. If it is false, the task will be sent again.
	SendFailed func(t TaskRow, err error, failed bool)
	// ClockSkew reports the database's clock minus this process's clock, and how far the true
	// difference may be from that.
	ClockSkew func(skew, uncertainty time.Duration)
	// Purged reports the number of finished tasks that were deleted.
	Purged func(n int64)
	// Error reports an error in one of Run's loops. The loop continues. The parameter part names the loop: relay, rate
	// limit, recall, recurring, sweep, purge, clock or listen.
	Error func(part string, err error)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WithDefaults returns the configuration with the defaults of zero fields. It does not know the sender: if the sender
// cannot delay messages for a day, New sets a shorter Horizon before it calls WithDefaults.
func (c Config) WithDefaults() Config {
	setDefault(&c.MaxBody, 1<<20)
	setDefault(&c.Horizon, 24*time.Hour)
	setDefault(&c.Batch, 500)
	setDefault(&c.batchBytes, 16<<20)
	setDefault(&c.Workers, 2)
	setDefault(&c.PollInterval, time.Second)
	setDefault(&c.PublishTimeout, 10*time.Second)
	setDefault(&c.Lease, max(time.Minute, 2*c.PublishTimeout))
	setDefault(&c.MaxSendFailures, 6)
	setDefault(&c.Grace, 2*time.Minute)
	setDefault(&c.MaxSends, 10)
	setDefault(&c.SweepInterval, min(max(c.Grace/4, time.Millisecond), 15*time.Second))
	setDefault(&c.Retention.Keep, max(7*24*time.Hour, c.Horizon))
	setDefault(&c.Retention.KeepFailed, 30*24*time.Hour)
	setDefault(&c.Retention.Every, 10*time.Minute)
	setDefault(&c.Retention.Batch, 1000)
	setDefault(&c.MaxClockSkew, time.Second)
	setDefault(&c.clockInterval, time.Minute)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.VirtualTime && c.DatabaseNow == nil {
		c.DatabaseNow = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate checks every field and returns one error that lists all problems, each of which wraps
// ErrConfig. Call it on the result of WithDefaults.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	within := func(field string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			bad(field, "%s; expected %s to %s", topology.FormatDuration(v), topology.FormatDuration(lo), topology.FormatDuration(hi))
		}
	}
	between := func(field string, v, lo, hi int) {
		if v < lo || v > hi {
			bad(field, "%d; expected %d to %d", v, lo, hi)
		}
	}
	const year = 366 * 24 * time.Hour
	if c.Dialect != "" && !sqldb.Dialect(c.Dialect).Valid() {
		bad("Dialect", "%q; expected %q, %q or %q", c.Dialect, PostgreSQL, MySQL, SQLite)
	}
	between("MaxBody", c.MaxBody, 1, recur.LargestBody)
	within("Horizon", c.Horizon, time.Millisecond, 100*year)
	between("Batch", c.Batch, 1, 5000)
	between("batchBytes", c.batchBytes, 1, 1<<30)
	between("Workers", c.Workers, 1, 64)
	within("PollInterval", c.PollInterval, time.Millisecond, time.Hour)
	within("PublishTimeout", c.PublishTimeout, time.Millisecond, time.Hour)
	within("Lease", c.Lease, 2*c.PublishTimeout, 24*time.Hour)
	between("MaxSendFailures", c.MaxSendFailures, 1, 1000)
	within("Grace", c.Grace, time.Millisecond, year)
	between("MaxSends", c.MaxSends, 1, 20)
	within("SweepInterval", c.SweepInterval, time.Millisecond, 24*time.Hour)
	within("Retention.Keep", c.Retention.Keep, c.Horizon, 100*year)
	within("Retention.KeepFailed", c.Retention.KeepFailed, time.Second, 100*year)
	within("Retention.Every", c.Retention.Every, time.Millisecond, year)
	between("Retention.Batch", c.Retention.Batch, 1, sqldb.MaxPurge)
	for _, x := range c.RateLimits {
		if _, err := x.completed(); err != nil {
			errs = append(errs, err)
		}
	}
	within("MaxClockSkew", c.MaxClockSkew, time.Millisecond, 24*time.Hour)
	within("clockInterval", c.clockInterval, time.Millisecond, 24*time.Hour)
	return errors.Join(errs...)
}
