package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

func (a *app) settingsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "settings",
		Short: "List all settings with their defaults and environment variables",
		Long: `settings lists all settings: path in the YAML file, type, default, environment
variable and meaning. Lists in the environment are separated by commas. The
environment overrides the file; an empty variable counts as not set. The flags
--url, --strategy, --queue-type and --db set broker.url, delay.strategy,
delay.queue_type and database.url.

The file's other sections have no variables: exchanges, queues, bindings and
destinations describe objects on the broker, schedules recurring tasks.`,
		Example: `  rabbitdelay settings
  rabbitdelay settings --json | jq -r .variable`,
		Args: program.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.printSettings() },
	}
}

// printSettings prints a paragraph for each setting, or with --json a line.
func (a *app) printSettings() error {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, s := range config.Settings() {
		if a.JSON {
			if err := a.PrintJSON(s); err != nil {
				return err
			}
			continue
		}
		variable := s.Variable
		if variable == "" {
			variable = "(file only)"
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\tdefault %s\n  %s\t\t%s\n", s.Path, s.Type, s.Default, variable, s.Meaning); err != nil {
			return err
		}
	}
	return w.Flush()
}
