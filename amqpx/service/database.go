package service

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// openDatabase takes the database that was given, or opens the file's, and returns how tasks
// are configured on it. There may be none.
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
	if err := s.awaitDatabase(ctx, look); err != nil {
		return err
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

// awaitDatabase asks until there is an answer or ctx ends.
func (s *Service) awaitDatabase(ctx context.Context, look *schedule.Store) error {
	for told := false; ; {
		err := look.Ping(ctx, databasePatience)
		if err == nil {
			return nil
		}
		if !told {
			told = true
			s.Logger.Warn("waiting for the database", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it did not answer: %w", err)
		case <-time.After(databasePause):
		}
	}
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
