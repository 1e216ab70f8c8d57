package app

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

const databaseUsage = "database: postgres://…, mysql://… or sqlite:path; default: database.url, RABBITDELAY_DATABASE_URL"

// DatabaseFlag adds the flag --db, which sets database.url. The parameter more is appended to its help text.
func DatabaseFlag(f *pflag.FlagSet, more string) {
	program.Setting(f, "database.url", "db", databaseUsage+more)
}

var errNoDatabase = errors.New("no database is configured; give --db, database.url in the file, or RABBITDELAY_DATABASE_URL")

// openDB opens an existing database. A missing SQLite file is an error, so that a misspelt name does not create a new
// file.
func openDB(cfg *config.Config) (*sql.DB, error) {
	u := cfg.Database.URL
	if u == "" {
		return nil, errNoDatabase
	}
	if d, err := config.Dialect(u); err == nil && d == idempotency.SQLite && !strings.Contains(string(u), "mode=") {
		separator := config.URL("?")
		if strings.Contains(string(u), "?") {
			separator = "&"
		}
		u += separator + "mode=rw"
	}
	db, _, err := config.OpenDB(u)
	if err != nil {
		return nil, fmt.Errorf("--db: %w", err)
	}
	return db, nil
}

// OpenAudit opens the database that has the audit for a Consent. It does nothing if the settings have no database, or
// if the database is already open. Call end to close the database.
func (c *Consent) OpenAudit(cfg *config.Config) (end func(), err error) {
	its := *cfg
	its.Database.URL = cmp.Or(config.URL(c.db), cfg.Database.URL)
	if its.Database.URL == "" || c.DB != nil {
		return func() {}, nil
	}
	if c.DB, err = openDB(&its); err != nil {
		return nil, err
	}
	return func() { _ = c.DB.Close() }, nil
}

// Store is a task store with its database.
type Store struct {
	*taskview.Store

	DB *sql.DB
}

// Close closes the database, which must be idle.
func (s *Store) Close() { _ = s.DB.Close() }

// OpenStore opens the database in the settings, without waiting for it to answer.
func (a *App) OpenStore(cfg *config.Config) (*Store, error) {
	db, err := openDB(cfg)
	if err != nil {
		return nil, err
	}
	s, err := taskview.New(db, schedule.Config{Destination: cfg.Listed, Logger: a.Logger()})
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return &Store{s, db}, nil
}

// WithStore loads the settings and runs do with the store of their database.
func (a *App) WithStore(ctx context.Context, do func(ctx context.Context, s *Store) error) error {
	cfg, err := a.Load(nil)
	if err != nil {
		return err
	}
	return a.WithStoreOf(ctx, cfg, do)
}

// WithStoreOf does the same as WithStore, for settings that are already loaded.
func (a *App) WithStoreOf(ctx context.Context, cfg *config.Config, do func(ctx context.Context, s *Store) error) error {
	s, err := a.OpenStore(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := CheckTasks(ctx, s.Store.Store); err != nil {
		return err
	}
	if d, _ := config.Dialect(cfg.Database.URL); d == idempotency.SQLite { // a file does not stop answering
		return do(ctx, s)
	}
	one, stop := watched(ctx, func(ctx context.Context) error { return s.Ping(ctx, Answering) })
	defer stop()
	return blamed(one, do(one, s))
}

// watchEvery is the interval at which a database is checked while a command works with it, to detect that it has
// stopped answering.
const watchEvery = 5 * time.Second

// errStopped means that a database has stopped answering while a command was using it.
var errStopped = errors.New("the database has stopped answering")

// watched returns a context that is cancelled when ping reports that the database does not answer. A query may take as
// long as it needs, but without this a command would wait forever for a database that hangs.
func watched(ctx context.Context, ping func(context.Context) error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(watchEvery):
			}
			if err := ping(ctx); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				cancel(fmt.Errorf("%w: %w", errStopped, err))
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// blamed returns the error from work that was done with a context from watched. If the work was cancelled because the
// database had stopped answering, the error says so.
func blamed(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || !errors.Is(cause, errStopped) {
		return err
	}
	if status, ok := errors.AsType[*program.StatusError](err); ok { // its exit code is for another reason
		err = status.Err
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return cause
	}
	return fmt.Errorf("%w; %w", cause, err)
}

// Answering is how long commands wait for a database to answer. It is long because some databases start only when a
// client connects. Tests shorten it.
var Answering = 10 * time.Second

// AdviceMigrate is the advice in errors of commands that do not create a database.
const AdviceMigrate = "; \"rabbitdelay migrate\" creates a new one"

// CheckDatabase pings a database and returns an error if it does not answer. If a SQLite file cannot be opened or
// written, the error ends with advice.
func CheckDatabase(ctx context.Context, s *schedule.Store, advice string) error {
	if err := s.Ping(ctx, Answering); err != nil {
		if text := err.Error(); strings.Contains(text, "unable to open database file") || strings.Contains(text, "readonly database") { // SQLite reports nothing more specific
			err = fmt.Errorf("%w; expected an existing file, and permission to write to it and its directory%s", err, advice)
		}
		return fmt.Errorf("connecting to the database: %w", err)
	}
	return nil
}

// CheckTasks returns an error if a database does not answer or its tasks cannot be read.
func CheckTasks(ctx context.Context, s *schedule.Store) error {
	if err := CheckDatabase(ctx, s, AdviceMigrate); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Answering)
	defer cancel()
	for _, err := range s.List(ctx, schedule.NoTx, schedule.Filter{Status: schedule.StatusPending, Limit: 1, WithoutBody: true}) {
		return err
	}
	return nil
}

// ApplySchedules writes the recurring tasks of the configuration file. It does nothing if there is no file.
func (a *App) ApplySchedules(ctx context.Context, s schedule.RecurringTasks, cfg *config.Config) (schedule.Applied, error) {
	if cfg.File() == "" {
		return schedule.Applied{}, nil
	}
	done, err := s.Apply(ctx, schedule.NoTx, cfg.Schedules)
	if err != nil {
		return done, err
	}
	if len(done.Unlisted) > 0 {
		a.Notef("these recurring tasks from an earlier configuration file are not in %s, but keep running: %s; to stop one, run \"rabbitdelay schedules delete NAME\"",
			cfg.File(), strings.Join(done.Unlisted, ", "))
	}
	return done, nil
}

// AppliedText describes what ApplySchedules changed. It is empty if nothing changed.
func AppliedText(done schedule.Applied) string {
	var parts []string
	for _, p := range []struct {
		did   string
		names []string
	}{{"created", done.Created}, {"changed", done.Changed}} {
		if len(p.names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", p.did, strings.Join(p.names, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}
