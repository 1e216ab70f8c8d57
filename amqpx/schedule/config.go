package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Dialect is a family of databases that understand the same SQL.
type Dialect = sqldb.Dialect

// The dialects there are.
const (
	PostgreSQL = sqldb.PostgreSQL
	MySQL      = sqldb.MySQL // and MariaDB
	SQLite     = sqldb.SQLite
)

// Executor runs statements: the caller's *sql.Tx, in whose commit the change
// takes effect, or a *sql.DB or *sql.Conn. What wraps them, such as the
// transactions of sqlx, bun, gorm and ent, is one too. A nil interface stands for
// the store's own database.
type Executor = sqldb.Executor

// Sender publishes tasks. *amqpx.Client is one.
type Sender interface {
	// SendBatch publishes with confirms; the error is an *amqpx.BatchError with
	// the failures by index, or one that concerns the whole batch.
	SendBatch(ctx context.Context, msgs []amqpx.Message) error
	// MaxDelay is the longest delay that a message may have.
	MaxDelay() time.Duration
}

var _ Sender = (*amqpx.Client)(nil)

// Listener tells the relay that tasks were written, so that it need not wait
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
	// 1 second. Tasks scheduled through this Store, and those a Listener tells
	// of, are looked for at once.
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
	// 6, within about half a minute. An invalid message fails its task at once;
	// an unreachable broker fails none.
	MaxSendFailures int
	// Grace is how long after its due instant a task that is still pending may be
	// sent again; default 2 minutes. Make it longer than a handler takes. It is
	// sent again when consumers have evidently passed it, not while it may wait
	// in its queue; docs/guarantees.md tells what counts. The pause doubles with
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
	// Retention says when finished tasks are deleted.
	Retention Retention
	// MaxClockSkew is the difference between this process's and the database's
	// clock beyond which a warning is logged; default 1 second. ClockInterval is
	// how often it is measured, and this process's clock corrected by it; default
	// 1 minute.
	MaxClockSkew  time.Duration
	ClockInterval time.Duration
	// Destination, optional, refuses destinations of tasks, beside those that the
	// sender refuses: amqpx.Config.Listed, for a store without a sender.
	Destination func(topology.Destination) error
	// Hooks observe the store; see Hooks.
	Hooks Hooks
	// Logger; nil is silent.
	Logger *zap.Logger
}

// Retention says when finished tasks are deleted. A task's id can be used again
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
	// BeforeSchedule sees a copy of each task that is about to be written, in the
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
	// loop: relay, recurring, sweep, purge, clock or listen.
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
			bad(field, "%v; expected %v to %v", v, lo, hi)
		}
	}
	between := func(field string, v, lo, hi int) {
		if v < lo || v > hi {
			bad(field, "%d; expected %d to %d", v, lo, hi)
		}
	}
	const year = 366 * 24 * time.Hour
	if c.Dialect != "" && !c.Dialect.Valid() {
		bad("Dialect", "%q; expected %q, %q or %q", c.Dialect, PostgreSQL, MySQL, SQLite)
	}
	between("MaxBody", c.MaxBody, 1, largestBody)
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
	within("MaxClockSkew", c.MaxClockSkew, time.Millisecond, 24*time.Hour)
	within("ClockInterval", c.ClockInterval, time.Millisecond, 24*time.Hour)
	return errors.Join(errs...)
}

// largestBody is RabbitMQ's own default limit of a message.
const largestBody = 16 << 20

// Store schedules, changes and relays tasks. It is safe for many goroutines.
type Store struct {
	db      sqldb.DB
	sender  Sender
	cfg     Config
	dialect *sqldb.Resolver
	log     *zap.Logger
	now     func() time.Time // the database's clock
	local   func() time.Time // this process's
	clock   func(context.Context) (time.Time, error)
	offset  atomic.Int64 // of now from local, in nanoseconds
	wake    chan struct{}

	asides    map[string]aside // recurring tasks, by name; of the one goroutine that plans
	pace      pacing
	ahead     instant // the due instant of what is to be sent next
	overdueAt instant // when something is to be sent again next
	faults    faults
	health    *health
	flying    sync.WaitGroup
	aloft     atomic.Int64  // bytes of bodies in flights
	more      atomic.Bool   // the last claim of new tasks left something
	claiming  chan struct{} // one element while a claim is on its way; no mutex, for which a test's bubble would stand still
	got       map[lane]int  // what each lane got of the last claim of new tasks

	mu      sync.Mutex
	held    []settling         // rows to be marked when who holds them lets go
	windows map[target]*window // of destinations with overdue tasks
}

// New makes a store on a database that Migrate has prepared. sender may be nil
// in a process that only writes, or looks at, tasks. It does no I/O. The error
// wraps ErrConfig.
func New(db *sql.DB, sender Sender, cfg Config) (*Store, error) {
	return NewOn(sqldb.Of(db), sender, cfg)
}

// NewOn is New for the packages of this module that bring other drivers than
// database/sql's; see amqpx/pgxtx.
func NewOn(db sqldb.DB, sender Sender, cfg Config) (*Store, error) {
	if x, ok := sender.(interface{ Strategy() amqpx.Strategy }); ok && x.Strategy().Name() == "ttl" {
		return nil, fmt.Errorf("%w: the sender's strategy is ttl, which has its declared delays only, and what is left of a task's delay may be any; give it the strategy bucket, or auto", ErrConfig)
	}
	if sender != nil {
		longest := sender.MaxDelay()
		switch {
		case cfg.Horizon == 0:
			cfg.Horizon = min(24*time.Hour, longest)
		case cfg.Horizon > longest:
			return nil, fmt.Errorf("%w: Horizon: %v; expected at most %v, the longest delay of the sender's strategy", ErrConfig, cfg.Horizon, longest)
		}
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		db: db, sender: sender, cfg: cfg, dialect: sqldb.NewResolver(db, cfg.Dialect),
		log: cfg.Logger, local: time.Now, wake: make(chan struct{}, 1),
		health: newHealth(cfg.Batch), claiming: make(chan struct{}, 1),
		asides: map[string]aside{}, got: map[lane]int{}, windows: map[target]*window{},
	}
	s.now, s.clock = s.corrected, s.readClock
	return s, nil
}

func (s *Store) on(ex Executor) sqldb.Conn {
	if ex == nil {
		return s.db
	}
	return sqldb.On(ex)
}
