package cli

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// applySchedules writes the file's recurring tasks; without a file, nothing.
func (a *app) applySchedules(ctx context.Context, db *sql.DB, cfg *config.Config) (schedule.Applied, error) {
	if cfg.File() == "" {
		return schedule.Applied{}, nil
	}
	s, err := schedule.New(db, nil, schedule.Config{Destination: cfg.Listed, Logger: a.Logger()})
	if err != nil {
		return schedule.Applied{}, err
	}
	done, err := s.Schedules().Apply(ctx, nil, cfg.Schedules)
	if err != nil {
		return done, err
	}
	if len(done.Unlisted) > 0 {
		a.Notef("recurring tasks from a configuration file that are not in %s: %s; they go on; to end one, \"rabbitdelay schedules delete NAME\"",
			cfg.File(), strings.Join(done.Unlisted, ", "))
	}
	return done, nil
}

// appliedText says what changed, empty for nothing.
func appliedText(done schedule.Applied) string {
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
