package service

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DefaultDrainTimeout leaves some of the 30 s that Kubernetes gives a process to end.
const DefaultDrainTimeout = 25 * time.Second

// Options of Open. The zero value reads the file that RABBITDELAY_FILE names, and without one the environment
// alone. Open logs which file it has read, or that there was none.
type Options struct {
	// File is the YAML file; the environment overrides it, see package config.
	File string

	// Logger of client, store and service; default slog.Default.
	Logger *slog.Logger
	// Zap is a logger of zap instead.
	Zap *zap.Logger

	// Database is one that the program has opened: a *sql.DB, or pgxtx.Database of a pool. It stays open.
	// Default: database.url of the file. With neither there are no tasks, and DB and Tasks are nil.
	Database schedule.Database
	// Migrate creates the tables of schedule and idempotency, or brings them to the newest version. Without it
	// they have to be there: rabbitdelay migrate makes them at deployment.
	Migrate bool

	// Telemetry; the zero value uses OpenTelemetry's global providers, which record nothing until the program
	// sets some.
	Telemetry telemetry.Config

	// Client and Tasks change what the file has made of their configurations, such as Client.Dial and
	// Client.Hooks, or Tasks.Horizon and Tasks.Hooks.
	Client func(*amqpx.Config)
	Tasks  func(*schedule.Config)

	// DrainTimeout is how long the end of Run may take in order, default 25 s; keep it below the grace period of
	// the process. Then handlers get the end of their context and two seconds to notice.
	DrainTimeout time.Duration
}

// Service is what Open has opened.
type Service struct {
	Config    *config.Config
	Client    *amqpx.Client
	Tasks     *schedule.Store // nil without a database
	DB        *sql.DB         // the file's, or the one that was given; nil for a pool of pgx, see TaskHandler
	Telemetry *telemetry.Telemetry
	Logger    *zap.Logger

	database schedule.Database
	ownDB    bool
	observed []metric.Registration
	drain    time.Duration
	stopping atomic.Bool
}

// openTimeout bounds Open when its context has no deadline.
const openTimeout = 30 * time.Second

// Open reads the file, opens its database and connects to its broker. It waits for both until ctx ends (30 s
// without a deadline), and writes the file's recurring tasks. What it opened is closed by Run, or by Close.
// Errors: see the package's comment.
func Open(ctx context.Context, o Options) (s *Service, err error) {
	if o.Logger != nil && o.Zap != nil {
		return nil, fmt.Errorf("%w: both Logger and Zap; give one", config.ErrConfig)
	}
	if o.DrainTimeout < 0 {
		return nil, fmt.Errorf("%w: DrainTimeout: %s; expected 0 for the default, or more", config.ErrConfig, topology.FormatDuration(o.DrainTimeout))
	}
	cfg, err := config.Load(config.Source{File: cmp.Or(o.File, os.Getenv(config.FileVariable))})
	if err != nil {
		return nil, err
	}
	s = &Service{Config: cfg, Logger: o.Zap, drain: cmp.Or(o.DrainTimeout, DefaultDrainTimeout)}
	if s.Logger == nil {
		s.Logger = amqpx.SlogLogger(cmp.Or(o.Logger, slog.Default()).Handler())
	}
	if s.Telemetry, err = telemetry.New(o.Telemetry); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	s.tell(o.Database != nil)
	return s, nil
}

// tell logs what was opened, so that a service which has lost its file is noticed.
func (s *Service) tell(given bool) {
	database := s.Config.Database.URL.String()
	switch {
	case given:
		database = fmt.Sprintf("given (%T)", s.database)
	case s.database == nil:
		database = "none"
	}
	broker := s.Client.Stats().Publish
	s.Logger.Info("service opened",
		zap.String("file", cmp.Or(s.Config.File(), "none: neither Options.File nor "+config.FileVariable+" is set")),
		zap.String("broker", strings.TrimSpace(broker.Broker+" at "+broker.Address)),
		zap.String("strategy", s.Client.Strategy().Name()),
		zap.Int("destinations", len(s.Config.Topology.Destinations)), zap.Int("schedules", len(s.Config.Schedules)),
		zap.String("database", database))
}

// open opens the database and the client, and makes the store.
func (s *Service) open(ctx context.Context, o Options) error {
	tasks, err := s.openDatabase(o)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if s.database != nil {
		if err := s.prepare(ctx, o.Migrate); err != nil {
			return fmt.Errorf("database: %w", err)
		}
	}
	strategy, err := s.Config.Strategy(ctx, s.Logger)
	if err != nil {
		return err
	}
	cfg, err := s.Config.Client(strategy, s.Logger)
	if err != nil {
		return err
	}
	if o.Client != nil {
		o.Client(&cfg)
	}
	cfg.Hooks = append(cfg.Hooks, s.Telemetry.Hook())
	if s.Client, err = amqpx.Open(ctx, cfg); err != nil {
		return err
	}
	if s.database != nil {
		if o.Tasks != nil {
			o.Tasks(&tasks)
		}
		tasks.Hooks = s.Telemetry.Hooks(tasks.Hooks)
		if s.Tasks, err = schedule.New(s.database, s.Client, tasks); err != nil {
			return err
		}
		if err := s.applySchedules(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
	}
	return s.observe()
}

// openDatabase takes the database that was given, or opens the file's, and returns how tasks are configured on
// it. There may be none.
func (s *Service) openDatabase(o Options) (tasks schedule.Config, err error) {
	tasks = schedule.Config{Logger: s.Logger, Ceilings: s.Config.Ceilings()}
	u := s.Config.Database.URL
	switch {
	case o.Database != nil:
		s.database = o.Database
		s.DB, _ = o.Database.(*sql.DB)
	case u != "":
		if tasks.Listener, err = config.Listener(u); err != nil {
			return tasks, err
		}
		if s.DB, tasks.Dialect, err = config.OpenDB(u); err != nil {
			return tasks, err
		}
		s.database, s.ownDB = s.DB, true
	}
	return tasks, nil
}

// Pauses between tries to reach a database, and how long one may take.
const (
	databasePause    = time.Second
	databasePatience = 5 * time.Second
)

// prepare waits until the database answers, and makes sure of its tables.
func (s *Service) prepare(ctx context.Context, migrate bool) error {
	look, err := schedule.New(s.database, nil, schedule.Config{Logger: s.Logger})
	if err != nil {
		return err
	}
	for told := false; ; {
		err := look.Ping(ctx, databasePatience)
		if err == nil {
			break
		}
		if !told {
			told = true
			s.Logger.Warn("waiting for the database", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w", err)
		case <-time.After(databasePause):
		}
	}
	if migrate {
		if err := idempotency.Migrate(ctx, s.database); err != nil {
			return err
		}
		return schedule.Migrate(ctx, s.database)
	}
	if _, err := look.CountUpTo(ctx, schedule.NoTx, schedule.Filter{}, 1); err != nil {
		return fmt.Errorf("%w; set Options.Migrate, or run rabbitdelay migrate at deployment, if the tables are not there", err)
	}
	return nil
}

// applySchedules writes the file's recurring tasks, if it has some.
func (s *Service) applySchedules(ctx context.Context) error {
	if len(s.Config.Schedules) == 0 {
		return nil
	}
	done, err := s.Tasks.Schedules().Apply(ctx, schedule.NoTx, s.Config.Schedules)
	if err != nil {
		return err
	}
	if len(done.Created)+len(done.Changed) > 0 {
		s.Logger.Info("recurring tasks were written", zap.Strings("created", done.Created), zap.Strings("changed", done.Changed))
	}
	if len(done.Unlisted) > 0 {
		s.Logger.Warn("recurring tasks of an earlier file go on; to end one, rabbitdelay schedules delete NAME",
			zap.String("names", strings.Join(done.Unlisted, ", ")))
	}
	return nil
}

// observe makes the metrics of what was opened.
func (s *Service) observe() error {
	keep := func(r metric.Registration, err error) error {
		if err == nil {
			s.observed = append(s.observed, r)
		}
		return err
	}
	err := errors.Join(keep(s.Telemetry.ObserveClient(s.Client)), keep(s.Telemetry.ObserveQueues(s.Client, s.Config.Topology.Destinations)))
	if s.Tasks != nil {
		err = errors.Join(err, keep(s.Telemetry.ObserveStore(s.Tasks)))
	}
	return err
}

// Health returns nil while the client works and the relay runs, and else why not: for a readiness probe, see
// Probe. Before Run it is schedule.ErrNotRunning where there is a database.
func (s *Service) Health() error {
	if s.stopping.Load() {
		return ErrStopping
	}
	err := s.Client.Health()
	if s.Tasks != nil {
		err = errors.Join(err, s.Tasks.Health())
	}
	return err
}

// ErrStarting is for a Probe's ready function, until there is something to ask.
var ErrStarting = errors.New("starting")

// ErrStopping is what Health returns once Run has begun to end.
var ErrStopping = errors.New("stopping")

// Close closes what Open opened, in a program that does not call Run: the client in order, see
// amqpx.Client.Close, and the database unless it was given.
func (s *Service) Close(ctx context.Context) error {
	var errs []error
	if s.Client != nil {
		errs = append(errs, s.Client.Close(ctx))
	}
	for _, r := range s.observed {
		errs = append(errs, r.Unregister())
	}
	s.observed = nil
	if s.ownDB {
		errs = append(errs, s.DB.Close())
	}
	return errors.Join(errs...)
}
