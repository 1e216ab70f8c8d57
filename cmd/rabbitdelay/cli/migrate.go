package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

func (a *app) migrateCommand() *cobra.Command {
	var db string
	printOnly := false
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update rabbitdelay's tables in the business database",
		Long: `migrate brings the tables of idempotency and schedule in the business database
to their newest version, and writes the recurring tasks of the file's section
schedules. It may run again and in many processes at once. With --print it prints
the SQL of the tables instead, for your own migration tool, and does not connect.

A recurring task that was removed from the file goes on, and is named in a note.`,
		Example: `  rabbitdelay migrate --db postgres://user:password@host/shop
  rabbitdelay migrate --db mysql: --print > 0042_rabbitdelay.sql`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if printOnly && a.Given("db") {
				return a.printMigrations(config.URL(db))
			}
			cfg, err := a.Load(a.Database(db), nil)
			if err != nil {
				return err
			}
			switch {
			case cfg.Database.URL == "":
				return fmt.Errorf("no database; give --db, or database.url in the file")
			case printOnly:
				return a.printMigrations(cfg.Database.URL)
			}
			conn, dialect, err := config.OpenDB(cfg.Database.URL)
			if err != nil {
				return fmt.Errorf("--db: %w", err)
			}
			defer func() { _ = conn.Close() }() // nothing is under way
			store, err := schedule.New(conn, nil, schedule.Config{})
			if err != nil {
				return err
			}
			if err := checkDatabase(c.Context(), store); err != nil {
				return err
			}
			var done []string
			for _, m := range config.Migrations() {
				if err := m.Migrate(c.Context(), conn); err != nil {
					return fmt.Errorf("migrating %s in %s: %w", m.Component, databaseName(cfg.Database.URL), err)
				}
				done = append(done, m.Component)
			}
			applied, err := a.applySchedules(c.Context(), conn, cfg)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(struct {
					Database string   `json:"database"`
					Migrated []string `json:"migrated"`
					Created  []string `json:"schedules_created,omitempty"`
					Changed  []string `json:"schedules_changed,omitempty"`
				}{string(dialect), done, applied.Created, applied.Changed})
			}
			a.Printf("%s is up to date: %s\n", databaseName(cfg.Database.URL), strings.Join(done, ", "))
			if text := appliedText(applied); text != "" {
				a.Printf("recurring tasks: %s\n", text)
			}
			return nil
		},
	}
	c.Flags().StringVar(&db, "db", "", "database: postgres://…, mysql://… or sqlite:path")
	c.Flags().BoolVar(&printOnly, "print", false, "print the SQL instead of running it")
	return c
}

// databaseName is a database as people know it: a file by its path, which holds no
// password, without the parameters, which might.
func databaseName(u config.URL) string {
	if path, ok := strings.CutPrefix(string(u), "sqlite:"); ok {
		path, _, _ = strings.Cut(path, "?")
		return "sqlite:" + path
	}
	return u.String()
}

func (a *app) printMigrations(u config.URL) error {
	dialect, err := config.Dialect(u)
	if err != nil {
		return fmt.Errorf("--db: %w", err)
	}
	var scripts []string
	for _, m := range config.Migrations() {
		scripts = append(scripts, strings.TrimSpace(m.Script(dialect)))
	}
	if a.JSON {
		return a.PrintJSON(struct {
			Database string `json:"database"`
			SQL      string `json:"sql"`
		}{string(dialect), strings.Join(scripts, "\n")})
	}
	for _, script := range scripts {
		a.Printf("%s\n", script)
	}
	return nil
}
