package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/sweep"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Migrate creates the tables of this package, such as rabbitdelay_tasks and rabbitdelay_schedules, or upgrades them to
// the newest version. It may be called whenever a process starts, and by many processes concurrently. If there is
// nothing to do, it only reads. The versions are recorded in rabbitdelay_schema.
func Migrate(ctx context.Context, db Database) error {
	return rows.Migrations.Migrate(ctx, sqldb.Of(db))
}

// Migrations returns the SQL that Migrate runs on an empty database, for use with a separate
// migration tool. It returns an empty string for an unknown dialect.
func Migrations(d Dialect) string { return rows.Migrations.Script(sqldb.Dialect(d)) }

// Store schedules, changes and relays tasks. It is safe for concurrent use. The zero value is not usable; use New.
type Store struct {
	db      *rows.DB
	sender  Sender
	cfg     Config
	log     *zap.Logger
	poller  *polling.Poller
	relay   *relay.Relay
	sweeper *sweep.Sweeper
	planner *recur.Planner
	faults  faults
}

// New returns a store for a database that Migrate has prepared. sender may be nil in a process that only writes or
// reads tasks and does not call Run. New does no I/O. Configuration errors wrap ErrConfig.
func New(db Database, sender Sender, cfg Config) (*Store, error) {
	if sqldb.IsNil(db) {
		return nil, fmt.Errorf("%w: %w", ErrConfig, ErrNoDatabase)
	}
	if sender != nil && sqldb.IsNil(sender) {
		return nil, fmt.Errorf("%w: the sender is a nil %T; pass the client that amqpx.Open returned without an error, or nil itself for a store that does not run a relay", ErrConfig, sender)
	}
	if x, ok := sender.(interface{ Strategy() amqpx.Strategy }); ok && x.Strategy().Name() == "ttl" {
		return nil, fmt.Errorf("%w: the sender's strategy is ttl, which supports only declared delays, but the remaining delay of a task can have any length; use the strategy bucket or auto", ErrConfig)
	}
	if sender != nil {
		longest := sender.MaxDelay()
		switch {
		case cfg.Horizon == 0:
			cfg.Horizon = min(24*time.Hour, longest)
		case cfg.Horizon > longest:
			return nil, fmt.Errorf("%w: Horizon: %s; expected at most %s, the longest delay of the sender's strategy", ErrConfig, topology.FormatDuration(cfg.Horizon), topology.FormatDuration(longest))
		}
	}
	if x, ok := sqldb.Of(db).(interface{ Listener() Listener }); ok && cfg.Listener == nil && !cfg.VirtualTime {
		cfg.Listener = x.Listener()
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{db: rows.Open(sqldb.Of(db), sqldb.Dialect(cfg.Dialect), cfg.DatabaseNow), sender: sender, cfg: cfg, log: cfg.Logger}
	s.poller = polling.New(polling.NewClock(cfg.Now, s.askClock, s.measured), cfg.PollInterval, max(cfg.Lease, time.Minute), cfg.VirtualTime)
	s.relay = relay.New(relay.Config{
		DB: s.db, Sender: sender, Poller: s.poller, Log: s.log, Report: s.reports("relay"), ReportRateLimit: s.reports("rate limit"),
		Horizon: cfg.Horizon, PollInterval: cfg.PollInterval, PublishTimeout: cfg.PublishTimeout, Lease: cfg.Lease, Grace: cfg.Grace,
		Batch: cfg.Batch, BatchBytes: cfg.batchBytes, Workers: cfg.Workers, MaxSendFailures: cfg.MaxSendFailures, MaxSends: cfg.MaxSends,
		Lead: longestLead(sender), Relayed: s.relayed, SendFailed: s.sendFailed,
	})
	s.sweeper = &sweep.Sweeper{Relay: s.relay, Interval: cfg.SweepInterval}
	s.sweeper.Inspector, _ = sender.(QueueInspector)
	s.planner = &recur.Planner{DB: s.db, Poller: s.poller, Log: s.log, MaxBody: cfg.MaxBody, CheckTask: relay.Check, Sendable: s.sendable}
	return s, nil
}

// longestLead returns the longest lead of a sender's messages, or 0 if the sender is not a client.
func longestLead(sender Sender) time.Duration {
	if c, ok := sender.(*amqpx.Client); ok {
		return c.Internals(inner.Access{}).Lead()
	}
	return 0
}

// rawConn returns the connection for an Executor, without a dialect. For NoTx that is the store's database.
func (s *Store) rawConn(ex Executor) sqldb.Conn {
	if ex == NoTx {
		return s.db.DB
	}
	return sqldb.On(ex)
}

// conn returns the connection for an Executor, with its dialect.
func (s *Store) conn(ctx context.Context, ex Executor) (rows.Conn, error) {
	return s.db.On(ctx, s.rawConn(ex))
}

// nowIn returns the database's time. If it has to be measured, nowIn does so on the connection of the Executor, because
// the caller's transaction may use the only connection.
func (s *Store) nowIn(ctx context.Context, ex Executor) (time.Time, error) {
	c, err := s.conn(ctx, ex)
	if err != nil {
		return time.Time{}, err
	}
	return s.nowOn(ctx, c), c.Failed()
}

// nowOn returns the database's time. If measuring it fails in a transaction, the next statement on c returns the
// reason.
func (s *Store) nowOn(ctx context.Context, c rows.Conn) time.Time {
	s.refresh(ctx, c)
	return s.poller.Now()
}

func (s *Store) refresh(ctx context.Context, c rows.Conn) {
	s.poller.Refresh(ctx, c.Clock)
}

// sendable returns why the sender would reject a task, or nil.
func (s *Store) sendable(t *rows.Task) *rows.FieldError {
	return relay.CheckFor(s.sender, s.cfg.Destination, t)
}

// observed runs a hook. If the hook panics, observed logs the panic and continues.
func (s *Store) observed(hook func()) { guard.Observe(s.log, "hook", hook) }

func (s *Store) relayed(n int, resent bool) {
	if s.cfg.Hooks.Relayed != nil {
		s.observed(func() { s.cfg.Hooks.Relayed(n, resent) })
	}
}

func (s *Store) sendFailed(t *rows.Task, err error, failed bool) {
	if s.cfg.Hooks.SendFailed != nil {
		s.observed(func() { s.cfg.Hooks.SendFailed(taskOf(t), err, failed) })
	}
}

func (s *Store) askClock(ctx context.Context) (time.Time, error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return c.Clock(ctx)
}

func (s *Store) measured(skew, uncertainty time.Duration) {
	if skew.Abs()-uncertainty > s.cfg.MaxClockSkew {
		s.log.Warn("the database's clock, which the relay uses, differs from this process's clock; synchronise the clocks",
			zap.Duration("difference", skew), zap.Duration("uncertainty", uncertainty), zap.Duration("bound", s.cfg.MaxClockSkew))
	}
	if s.cfg.Hooks.ClockSkew != nil {
		s.observed(func() { s.cfg.Hooks.ClockSkew(skew, uncertainty) })
	}
}

// worthLogging is how long a part of Run must have failed for its recovery to be logged.
const worthLogging = time.Second

// reports returns a function that records the outcomes of a part of Run for Health, passes errors to Hooks.Error, and
// logs each kind of error when it first occurs and then once a minute.
func (s *Store) reports(part string) func(error) {
	return func(err error) {
		err = sqldb.Explain(err)
		log, ended := s.faults.setOutcome(part, err, s.poller.Local())
		if err == nil {
			if ended > worthLogging {
				s.log.Info("schedule: "+part+" works again", zap.String("failed_for", topology.FormatDuration(ended)))
			}
			return
		}
		level, kind := zap.WarnLevel, err.Error()
		switch {
		case errors.Is(err, ErrDenied):
			level = zap.ErrorLevel // the error persists until the permission is granted
		case sqldb.Unavailable(err):
			kind = "unavailable" // the messages of such errors differ in ports and addresses
		}
		log.Log(s.log, level, kind, "schedule: "+part+" failed; retrying", zap.Error(err))
		if s.cfg.Hooks.Error != nil {
			s.observed(func() { s.cfg.Hooks.Error(part, err) })
		}
	}
}

// reading calls read with a connection and the row filter, and prefixes the error with the parameter doing, such as
// "counting tasks".
func reading[T any](ctx context.Context, s *Store, ex Executor, f Filter, doing string, read func(c rows.Conn, f rows.Filter) (T, error)) (none T, err error) {
	filter, err := f.rowFilter()
	if err != nil {
		return none, fmt.Errorf("%s: %w", doing, err)
	}
	c, err := s.conn(ctx, ex)
	if err != nil {
		return none, fmt.Errorf("%s: %w", doing, err)
	}
	result, err := read(c, filter)
	if err != nil {
		return none, fmt.Errorf("%s: %w", doing, err)
	}
	return result, nil
}
