package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Dialect names a family of databases that understand the same SQL.
type Dialect = string

// The dialects.
const (
	PostgreSQL = "postgres"
	MySQL      = "mysql" // and MariaDB
	SQLite     = "sqlite"
)

// Executor runs statements: the caller's *sql.Tx, in whose commit the change
// takes effect, or NoTx for the store's own database, at once. A *sql.DB or *sql.Conn
// is one too, and so is what wraps them, such as the transactions of sqlx, bun, gorm
// and ent. Methods fail with ErrNoExecutor on one that is nil.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// NoTx is the Executor that stands for the store's own database, outside of any
// transaction of the caller: the change takes effect at once, whatever becomes of what
// the caller does beside it.
var NoTx Executor = noTx{}

type noTx struct{}

var errNoTx = errors.New("schedule.NoTx runs no statements; it stands for the database of a Store")

func (noTx) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, errNoTx }

func (noTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) { return nil, errNoTx }

// Database is a *sql.DB, or pgxtx.Database of a pool of pgx.
type Database interface {
	Executor
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Ceiling bounds how many tasks of a destination, a queue or an exchange with all its routing
// keys, come there in a second, whatever the number of relays. Any second has at most
// PerSecond tasks and one Burst; what is beyond waits in the table, those first that are due
// first, and holds up no other destination. Such tasks are given to the broker about a second
// before they may go, and Delivery.DueAt is that instant then. Tasks that are sent again
// count. What a consumer sends does not: a retry, say. Nor do tasks that were with the broker
// before there was a ceiling.
type Ceiling struct {
	Queue    string
	Exchange string
	// PerSecond is at most 100000, and may be below 1: 0.1 is one in ten seconds. 0 removes the
	// ceiling.
	PerSecond float64
	// Burst is how many tasks may go at once after a time with fewer; default a tenth of
	// PerSecond, at least 1.
	Burst int
}

// completed returns the ceiling with its default, or what is wrong with it.
func (x Ceiling) completed() (Ceiling, error) {
	if _, err := laneOf(topology.Destination{Queue: x.Queue, Exchange: x.Exchange}); err != nil {
		return x, err
	}
	name := topology.Destination{Queue: x.Queue, Exchange: x.Exchange}
	if x.PerSecond != 0 && !(topology.Ceiling{PerSecond: x.PerSecond, Burst: x.Burst}).Valid() {
		return x, fmt.Errorf("%w: the ceiling of %s: %v tasks a second and a burst of %d; expected 0 for none, or one a day to %d a second, and a burst of 0 to %d",
			ErrConfig, name, x.PerSecond, x.Burst, topology.MaxPerSecond, topology.MaxPerSecond)
	}
	x.Burst = max(x.Burst, 0) // without a ceiling
	setDefault(&x.Burst, max(1, int(x.PerSecond/10)))
	return x, nil
}

// laneOf is a destination as it is held back.
func laneOf(d topology.Destination) (rows.Lane, error) {
	switch {
	case (d.Queue == "") == (d.Exchange == ""):
		return rows.Lane{}, fmt.Errorf("%w: queue %q and exchange %q; set one of them", ErrConfig, d.Queue, d.Exchange)
	case d.RoutingKey != "":
		return rows.Lane{}, fmt.Errorf("%w: exchange %q with routing key %q; an exchange is held back with all its routing keys: leave the key out", ErrConfig, d.Exchange, d.RoutingKey)
	case len(d.Queue+d.Exchange) > rows.MaxName || !rows.IsText(d.Queue+d.Exchange):
		return rows.Lane{}, fmt.Errorf("%w: queue %.300q and exchange %.300q; expected at most %d bytes of UTF-8 without NUL", ErrConfig, d.Queue, d.Exchange, rows.MaxName)
	}
	return rows.Lane{Queue: d.Queue, Exchange: d.Exchange}, nil
}

// Sender publishes tasks. *amqpx.Client is one.
type Sender interface {
	// SendBatch publishes with confirms; the error is an *amqpx.BatchError with
	// the failures by index, or one that concerns the whole batch.
	SendBatch(ctx context.Context, msgs []amqpx.Message) error
	// MaxDelay is the longest delay that a message may have.
	MaxDelay() time.Duration
}

// QueueInspector is what a Sender may be besides, for the sweeper to distinguish a queue
// whose messages are waiting from one whose messages are lost. *amqpx.Client is one.
// Without it the sweeper sends little again where consumers have stopped.
type QueueInspector interface {
	QueueInfo(ctx context.Context, queue string) (amqpx.QueueInfo, error)
}

var (
	_ Sender         = (*amqpx.Client)(nil)
	_ QueueInspector = (*amqpx.Client)(nil)
)

// Listener wakes the relay when tasks were written, so that it need not wait
// for its next look. On PostgreSQL it LISTENs on NotifyChannel, which the
// table's trigger notifies. database/sql has no way to do that; pgxtx.Listener
// does it, and pgxtx.New by itself.
type Listener interface {
	// Listen calls wake for every notification, and once when it has begun to
	// listen, until ctx ends or the connection is lost. Run calls it again then.
	Listen(ctx context.Context, wake func()) error
}

// NotifyChannel is the channel on which PostgreSQL notifies of tasks that are
// due within the next 5 seconds.
const NotifyChannel = "rabbitdelay_tasks"

// Config tunes a Store. The zero value is ready to use.
type Config struct {
	// Dialect of the database; default: recognised.
	Dialect Dialect
	// MaxBody is the longest body that Schedule accepts, in bytes; default 1 MiB,
	// at most 16 MiB, RabbitMQ's own default limit.
	MaxBody int
	// Horizon is how long before its due instant a task is sent to the broker;
	// until then it waits in the table only. Default 24 hours, or the sender's
	// MaxDelay if that is shorter, which is also its upper bound.
	Horizon time.Duration
	// Batch is how many tasks one claim takes; default 500, at most 5000.
	Batch int
	// BatchBytes is how many bytes of bodies and headers one claim takes, unless a
	// single task has more; default 16 MiB. Tasks of up to Workers + 2 times as many
	// bytes are in memory.
	BatchBytes int
	// Workers is how many batches are on their way at once in this process;
	// default 2.
	Workers int
	// PollInterval is the longest pause between two looks for new tasks; default
	// 1 second. Tasks scheduled through this Store, and those that a
	// Listener reports, are looked for at once.
	PollInterval time.Duration
	// Listener, optional, wakes the relay for tasks that others wrote.
	Listener Listener
	// PublishTimeout bounds the publishing of one batch; default 10 seconds.
	PublishTimeout time.Duration
	// Lease is how long a claim keeps other relays off a task. After a crash its
	// tasks are published that much later. Default 1 minute, at least twice
	// PublishTimeout.
	Lease time.Duration
	// MaxSendFailures is how often in a row the sending of a task may fail
	// because its destination does not exist before the task is failed; default
	// 6, within about a minute. An invalid message or destination fails its task at once;
	// an unreachable broker fails none.
	MaxSendFailures int
	// Grace is how long after its due instant a task that is still pending may be
	// sent again; default 2 minutes. Make it longer than a handler takes. It is
	// sent again when consumers have evidently passed it, not while it may wait
	// in its queue; docs/guarantees.md lists what counts. The pause doubles with
	// every time.
	Grace time.Duration
	// MaxSends is how often a task is sent if no handler settles it; default 10,
	// at most 20. When the last pause has ended, Grace x (2^MaxSends - 1) after it
	// was due at the earliest, 34 hours by default, it fails with ErrMaxSends, once
	// consumers have evidently taken its last message; until then it stays
	// pending and is not sent.
	MaxSends int
	// SweepInterval is the pause between two looks for such tasks; default a
	// quarter of Grace, at most 15 seconds.
	SweepInterval time.Duration
	// Ceilings bound how many tasks come to a destination in a second. Run writes them to the
	// database before it sends, and all relays there go by them, also those whose own
	// configuration has others or none: by what was written last. One with PerSecond 0 removes
	// that of its destination; what is not listed stays as it is.
	Ceilings []Ceiling
	// Retention is how long finished tasks stay.
	Retention Retention
	// MaxClockSkew is the difference between this process's and the database's
	// clock beyond which a warning is logged; default 1 second. ClockInterval is
	// how often Run measures it, and others once a minute; default 1 minute.
	MaxClockSkew  time.Duration
	ClockInterval time.Duration
	// Destination, optional, refuses destinations of tasks, beside those that the
	// sender refuses: amqpx.Config.Listed, for a store without a sender.
	Destination func(topology.Destination) error
	// Hooks observe the store; see Hooks.
	Hooks Hooks
	// Now is this process's wall clock, default time.Now: a test gives one that is wrong.
	Now func() time.Time
	// DatabaseNow is the clock of a database that is part of this process, as SQLite is, and of
	// any database in a testing/synctest bubble. The default is time.Now; a test gives one that
	// is wrong. Other databases tell their own.
	DatabaseNow func() time.Time
	// Logger; nil is silent.
	Logger *zap.Logger
}

// Retention is how long finished tasks stay. A task's id can be used again
// after that.
type Retention struct {
	Keep       time.Duration // after it was done or cancelled, or expired; default 7 days, at least Horizon
	KeepFailed time.Duration // after it failed; default 30 days
	Every      time.Duration // pause between two purges; default 10 minutes
	Batch      int           // rows deleted by one statement; default 1000
}

// Hooks observe a Store. Each may be nil. All but BeforeSchedule are called from
// the goroutines of Run, and must not block. A panic in one is logged, and changes
// nothing.
type Hooks struct {
	// BeforeSchedule is called with a copy of each task that is about to be written, in the
	// caller's goroutine. It may add headers, such as the trace context of ctx,
	// which every message of the task then has. Headers with which the task could not
	// be sent are dropped again.
	BeforeSchedule func(ctx context.Context, t *Task)
	// Relayed reports n tasks whose publish was confirmed; resent when it was the
	// sweeper's.
	Relayed func(n int, resent bool)
	// SendFailed reports a task that could not be sent, or that was sent MaxSends
	// times and is not settled (ErrMaxSends). failed is true if its status is
	// failed now; otherwise it will be tried again.
	SendFailed func(t Task, err error, failed bool)
	// ClockSkew reports the database's clock minus this process's, and how
	// exactly it could be measured.
	ClockSkew func(skew, uncertainty time.Duration)
	// Purged reports finished tasks that were deleted.
	Purged func(n int64)
	// Error reports an error of Run's loops, which continue; what names the
	// loop: relay, recall, recurring, sweep, purge, clock or listen.
	Error func(what string, err error)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WithDefaults fills in what is zero. Horizon's default depends on the sender,
// and is filled in by New.
func (c Config) WithDefaults() Config {
	setDefault(&c.MaxBody, 1<<20)
	setDefault(&c.Horizon, 24*time.Hour)
	setDefault(&c.Batch, 500)
	setDefault(&c.BatchBytes, 16<<20)
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
	setDefault(&c.ClockInterval, time.Minute)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.DatabaseNow == nil {
		c.DatabaseNow = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate checks every field, after WithDefaults, and reports all that is wrong
// at once.
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
	between("BatchBytes", c.BatchBytes, 1, 1<<30)
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
	for _, x := range c.Ceilings {
		if _, err := x.completed(); err != nil {
			errs = append(errs, err)
		}
	}
	within("MaxClockSkew", c.MaxClockSkew, time.Millisecond, 24*time.Hour)
	within("ClockInterval", c.ClockInterval, time.Millisecond, 24*time.Hour)
	return errors.Join(errs...)
}
