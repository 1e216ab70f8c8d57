package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

func (a *app) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Check a file without a broker",
		Long: `validate reads the file as all commands do, with the environment and the flags,
and reports everything that is wrong with it, by line and column: unknown keys,
wrong values, contradictions, names that are too long, objects that are described
otherwise than the strategy needs them. It asks neither a broker nor a database, and
does not read the files that the settings name.

With --json a valid file prints {"file":"…","strategy":"…","exchanges":N,
"queues":N,"bindings":N,"destinations":N,"schedules":N}, which counts what apply
would declare.

Exit code: 0 the file is valid, 1 it is not, cannot be read, or none was given.`,
		Example: `  rabbitdelay validate -f delays.yaml
  RABBITDELAY_FILE=delays.yaml rabbitdelay validate --json`,
		Args: program.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.validate() },
	}
}

func (a *app) validate() error {
	c, err := a.Load(nil, nil)
	if err != nil {
		return err
	}
	if c.File() == "" {
		return fmt.Errorf("no file; give -f, or set %s", config.FileVariable)
	}
	s, err := c.Offline()
	if err != nil {
		return fmt.Errorf("%s: %w", c.File(), err)
	}
	t, err := c.Describe(s)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File(), err)
	}
	v := validated{c.File(), s.Name(), len(t.Exchanges), len(t.Queues), len(t.Bindings), len(c.Topology.Destinations), len(c.Schedules)}
	switch {
	case a.JSON:
		return a.PrintJSON(v)
	case a.Quiet:
		return nil
	}
	_, err = fmt.Fprintf(a.Stdout, "%s is valid: strategy %s; with its delay queues %d exchanges, %d queues, %d bindings; destinations: %d, schedules: %d\n",
		v.File, v.Strategy, v.Exchanges, v.Queues, v.Bindings, v.Destinations, v.Schedules)
	return err
}

// validated is what --json prints.
type validated struct {
	File         string `json:"file"`
	Strategy     string `json:"strategy"`
	Exchanges    int    `json:"exchanges"`
	Queues       int    `json:"queues"`
	Bindings     int    `json:"bindings"`
	Destinations int    `json:"destinations"`
	Schedules    int    `json:"schedules"`
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the file, for editors",
		Long: `schema prints the JSON schema (draft 2020-12) of the YAML file. Editors with the
YAML language server complete and check a file whose first line names it:

  # yaml-language-server: $schema=rabbitdelay.schema.json

It has the keys and the kinds of values; "rabbitdelay validate" checks what the
values mean too.`,
		Example: `  rabbitdelay schema > rabbitdelay.schema.json`,
		Args:    program.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.Stdout.Write(config.Schema())
			return err
		},
	}
}
