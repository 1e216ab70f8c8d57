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
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// defaultDrainTimeout is the default of Options.DrainTimeout. It is less than the 30 s that Kubernetes gives a process
// to stop.
const defaultDrainTimeout = 25 * time.Second

// Options configures Open. With the zero value, Open reads the file that RABBITDELAY_FILE names or, if that is not set,
// only the environment. Open logs which file it has read, or that there was none.
type Options struct {
	// File is the path of the YAML file. The environment overrides the file; see package config.
	File string

	// Logger is the logger of the client, the store and the service. Use amqpx.SlogLogger for a logger of log/slog. The
	// default is slog.Default.
	Logger *zap.Logger

	// Database is a database that the program has opened: a *sql.DB, or the pgxtx.Database of a pool. It stays open.
	// The default is the database.url of the file. If there is neither, the service has no tasks, and DB and Tasks are
	// nil.
	Database schedule.Database
	// Migrate makes Open create the tables of schedule and idempotency, or migrate them to the newest version. Without
	// it the tables must exist; rabbitdelay migrate creates them at deployment.
	Migrate bool

	// Telemetry configures traces and metrics. The zero value uses OpenTelemetry's global providers, which record
	// nothing unless the program sets them.
	Telemetry telemetry.Config

	// Client and Tasks modify the configurations that result from the file, for example Dial and Hooks of amqpx.Config,
	// or Horizon and Hooks of schedule.Config.
	Client func(*amqpx.Config)
	Tasks  func(*schedule.Config)

	// DrainTimeout is how long an orderly shutdown of Run may take; the default is 25 s. Keep it below the grace period
	// of the process. When this time has passed, the contexts of handlers are cancelled, and handlers get two more
	// seconds to return.
	DrainTimeout time.Duration

	// VirtualTime is for tests in a bubble of testing/synctest. It sets schedule.Config.VirtualTime, TaskHandler uses
	// the bubble's clock, and Run does not wait for signals, which Go cannot do in a bubble. A test must also connect
	// the client to an in-memory broker: Client: func(c *amqpx.Config) { c.Dial = server.Dial }.
	VirtualTime bool
}

// Service contains everything that Open has created and opened. The zero value is not usable; use Open.
type Service struct {
	Config    *config.Config
	Client    *amqpx.Client
	Tasks     *schedule.Store // nil without a database
	DB        *sql.DB         // the file's database or Options.Database; nil for a pgx pool, see TaskHandler
	Telemetry *telemetry.Telemetry
	Logger    *zap.Logger

	database schedule.Database
	ownDB    bool
	observed []metric.Registration
	drain    time.Duration
	virtual  bool
	stopping atomic.Bool
}

// openTimeout limits Open if its context has no deadline.
const openTimeout = 30 * time.Second

// Open reads the file, opens its database and connects to its broker. It waits for both to be available until ctx ends,
// or for 30 s if ctx has no deadline. It also writes the file's recurring tasks to the database. Run or Close closes
// what Open has opened. For the errors, see the package comment.
func Open(ctx context.Context, o Options) (s *Service, err error) {
	if o.DrainTimeout < 0 {
		return nil, fmt.Errorf("%w: DrainTimeout: %s; expected 0 for the default, or more", config.ErrConfig, topology.FormatDuration(o.DrainTimeout))
	}
	if reason := units.Duration(o.DrainTimeout); reason != "" {
		return nil, fmt.Errorf("%w: DrainTimeout: %s", config.ErrConfig, reason)
	}
	cfg, err := config.Load(config.Source{File: cmp.Or(o.File, os.Getenv(config.FileVariable))})
	if err != nil {
		return nil, err
	}
	s = &Service{Config: cfg, Logger: o.Logger, drain: cmp.Or(o.DrainTimeout, defaultDrainTimeout), virtual: o.VirtualTime}
	if s.Logger == nil {
		s.Logger = amqpx.SlogLogger(slog.Default())
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

// tell logs what was opened, so that operators notice a service that does not find its file.
func (s *Service) tell(given bool) {
	database := s.Config.Database.URL.String()
	switch {
	case sqldb.IsForeign(s.database):
		database = "given (a pool of pgx)"
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

// open opens the database and the client, and creates the store.
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

// openDatabase uses the given database or opens the file's, and returns the configuration of tasks on it. There may be
// no database.
func (s *Service) openDatabase(o Options) (tasks schedule.Config, err error) {
	tasks = schedule.Config{Logger: s.Logger, RateLimits: s.Config.RateLimits(), VirtualTime: s.virtual}
	u := s.Config.Database.URL
	switch {
	case o.Database != nil:
		s.database = o.Database
		s.DB, _ = o.Database.(*sql.DB)
	case u != "":
		if !s.virtual { // virtual time does not pass while a goroutine reads from a connection
			if tasks.Listener, err = config.Listener(u); err != nil {
				return tasks, err
			}
		}
		if s.DB, tasks.Dialect, err = config.OpenDB(u); err != nil {
			return tasks, err
		}
		s.database, s.ownDB = s.DB, true
	}
	return tasks, nil
}

// These settings apply while Open waits for a database: the pause between attempts, and the timeout of one attempt.
const (
	databasePause    = time.Second
	databasePatience = 5 * time.Second
)

// prepare waits until the database answers, and creates or checks its tables.
func (s *Service) prepare(ctx context.Context, migrate bool) error {
	look, err := schedule.New(s.database, nil, schedule.Config{Logger: s.Logger})
	if err != nil {
		return err
	}
	var why error
	for {
		err := look.Ping(ctx, databasePatience)
		if err == nil {
			break
		}
		if why == nil {
			s.Logger.Warn("waiting for the database", zap.Error(err))
		}
		if why == nil || ctx.Err() == nil { // an attempt that the end of ctx has cut off does not say what is wrong
			why = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w%s", why, adviceOnFile(why))
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
		return fmt.Errorf("%w; if the tables are missing, set Options.Migrate, or run rabbitdelay migrate at deployment", err)
	}
	return nil
}

// adviceOnFile returns what to check if SQLite, which reports nothing more specific, cannot open its file.
func adviceOnFile(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "unable to open database file"):
		return "; expected a file, or a path at which one can be created, in a folder that exists and that this process may write to"
	case strings.Contains(text, "file is not a database"):
		return "; expected an SQLite database that is not encrypted, or a path at which there is no file yet"
	}
	return ""
}

// applySchedules writes the file's recurring tasks to the database, if the file has any.
func (s *Service) applySchedules(ctx context.Context) error {
	if len(s.Config.Schedules) == 0 {
		return nil
	}
	done, err := s.Tasks.Recurring().Apply(ctx, schedule.NoTx, s.Config.Schedules)
	if err != nil {
		return err
	}
	if len(done.Created)+len(done.Changed) > 0 {
		s.Logger.Info("wrote recurring tasks", zap.Strings("created", done.Created), zap.Strings("changed", done.Changed))
	}
	if len(done.Unlisted) > 0 {
		s.Logger.Warn("recurring tasks from an earlier configuration file are still active; to delete one, run rabbitdelay schedules delete NAME",
			zap.String("names", strings.Join(done.Unlisted, ", ")))
	}
	return nil
}

// observe registers the metrics of everything that was opened.
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

// Health returns nil while the client works and the relay runs, and otherwise the reason. Use it for a readiness probe;
// see Probe. If there is a database, it returns schedule.ErrNotRunning before Run is called.
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

// ErrStarting can be returned by the ready function of a Probe until the service is open.
var ErrStarting = errors.New("starting")

// ErrStopping is returned by Health when Run has begun to shut down.
var ErrStopping = errors.New("stopping")

// Close closes what Open has opened, for a program that does not call Run. It closes the client gracefully (see
// amqpx.Client.Close), and then the database, unless that was passed in Options.Database.
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
