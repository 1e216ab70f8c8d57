package tasks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
)

// MigrateCommand returns the migrate command, which creates or updates rabbitdelay's tables.
func MigrateCommand(a *app.App) *cobra.Command {
	var db *string
	printOnly := false
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update rabbitdelay's tables in a database",
		Long: `Create or update rabbitdelay's tables in the business database, and store the
recurring tasks from the configuration file in it. It is safe to run repeatedly,
and from several processes at the same time.`,
		Example: `  rabbitdelay migrate --db postgres://user:password@host/shop
  rabbitdelay migrate --db mysql: --print > 0042_rabbitdelay.sql`,
		RunE: func(c *cobra.Command, _ []string) error {
			if printOnly && a.Given("db") {
				return printMigrations(a, config.URL(*db))
			}
			cfg, err := a.Load(nil)
			switch {
			case err != nil:
				return err
			case cfg.Database.URL == "":
				return errors.New("no database is configured; give --db, or database.url in the file")
			case printOnly:
				return printMigrations(a, cfg.Database.URL)
			}
			return migrate(c.Context(), a, cfg)
		},
	}
	db = program.Setting(c.Flags(), "database.url", "db", "database: postgres://…, mysql://… or sqlite:path")
	c.Flags().BoolVar(&printOnly, "print", false, "print the SQL instead of running it")
	return c
}

// components lists the migrations of all components in the order in which they run.
var components = []struct {
	Component string
	Migrate   func(ctx context.Context, db *sql.DB) error
	Script    func(d idempotency.Dialect) string
}{
	{"idempotency", func(ctx context.Context, db *sql.DB) error { return idempotency.Migrate(ctx, db) }, idempotency.Migrations},
	{"schedule", func(ctx context.Context, db *sql.DB) error { return schedule.Migrate(ctx, db) }, schedule.Migrations},
}

type migrated struct {
	Database string   `json:"database"`
	Migrated []string `json:"migrated"`
	Created  []string `json:"schedules_created,omitempty"`
	Changed  []string `json:"schedules_changed,omitempty"`
}

func migrate(ctx context.Context, a *app.App, cfg *config.Config) error {
	conn, dialect, err := config.OpenDB(cfg.Database.URL)
	if err != nil {
		return fmt.Errorf("--db: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing uses the database any more, so an error does not matter
	store, err := schedule.New(conn, nil, schedule.Config{Destination: cfg.Listed, Logger: a.Logger()})
	if err != nil {
		return err
	}
	if err := app.CheckDatabase(ctx, store, ""); err != nil {
		return err
	}
	out, name := migrated{Database: string(dialect)}, databaseName(cfg.Database.URL)
	before := migrations(ctx, conn)
	for _, m := range components {
		if err := m.Migrate(ctx, conn); err != nil {
			return fmt.Errorf("migrating %s in %s: %w", m.Component, name, err)
		}
		out.Migrated = append(out.Migrated, m.Component)
	}
	state := "is up to date"
	if before != migrations(ctx, conn) {
		state = "now has its tables"
	}
	applied, err := a.ApplySchedules(ctx, store.Recurring(), cfg)
	if err != nil {
		return err
	}
	out.Created, out.Changed = applied.Created, applied.Changed
	recurring := ""
	if text := app.AppliedText(applied); text != "" {
		recurring = "recurring tasks: " + text + "\n"
	}
	return a.Show(out, "%s %s: %s\n%s", name, state, strings.Join(out.Migrated, ", "), recurring)
}

// migrations returns the number of migrations in a database, or -1 if it cannot be read, as in an empty database.
func migrations(ctx context.Context, conn *sql.DB) (n int) {
	if err := conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_schema").Scan(&n); err != nil {
		return -1
	}
	return n
}

// databaseName returns the name of a database for output. For SQLite this is the path without its parameters, because
// only the parameters might contain a password.
func databaseName(u config.URL) string {
	if path, ok := strings.CutPrefix(string(u), "sqlite:"); ok {
		path, _, _ = strings.Cut(path, "?")
		return "sqlite:" + path
	}
	return u.String()
}

func printMigrations(a *app.App, u config.URL) error {
	dialect, err := config.Dialect(u)
	if err != nil {
		return fmt.Errorf("--db: %w", err)
	}
	var scripts []string
	for _, m := range components {
		scripts = append(scripts, strings.TrimSpace(m.Script(dialect)))
	}
	script := strings.Join(scripts, "\n")
	return a.Show(struct {
		Database string `json:"database"`
		SQL      string `json:"sql"`
	}{string(dialect), script}, "%s\n", script)
}
