package cli

import (
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (a *app) planCommand() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what apply would create on the broker",
		Long: `plan compares what the settings and the file describe with the live broker, by
the management API where it answers, else by declarations over AMQP.

Exit code: 0 nothing to do, 2 something to create, or bindings that AMQP alone
cannot verify, 1 errors, objects that exist with other arguments, or policies
that would break delays or lose dead letters.`,
		Example: `  rabbitdelay plan -f delays.yaml
  rabbitdelay plan --json | jq .create`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.setup(c.Context())
			if err != nil {
				return err
			}
			defer s.close()
			p, err := s.broker.Plan(c.Context(), s.want)
			if err != nil {
				return err
			}
			return a.planned(p, all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list every object")
	return c
}

// planned prints a plan, and ends the command with what it comes to.
func (a *app) planned(p topology.Plan, all bool) (err error) {
	if a.JSON {
		err = a.PrintJSON(p)
	} else if !a.Quiet {
		err = p.Render(a.Stdout, all)
	}
	if err != nil {
		return err
	}
	if err := problems(p); err != nil {
		return err
	}
	if !p.Empty() || p.Count(topology.ActionUnverified) > 0 {
		return program.Exit(exitToDo)
	}
	return nil
}
