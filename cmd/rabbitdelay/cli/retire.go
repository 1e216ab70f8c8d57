package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

func (a *app) retireCommand() *cobra.Command {
	r := &destroyRun{a: a, retire: true}
	c := &cobra.Command{
		Use:   "retire",
		Short: "Delete earlier layouts that have drained",
		Long: `retire deletes the layouts under delay.previous in the file: their delay queues,
the exchanges before and between them, and the bindings of the file's
destinations for them. What the present layout or all layouts use stays, and so
do destinations.

It is destroy for what the settings were before. It shows what would go and asks;
without a terminal it needs --yes. It refuses, and touches nothing, while messages
wait in an earlier layout, ready or not, so it needs the management API. It
counts for 6 s after it has closed the way in; a service that still sends through
the layout is noticed then, and nothing is deleted.

Afterwards take the layouts out of delay.previous: services that start with them
would bind their destinations for them again.

Exit code: 0 deleted, nothing to delete, or shown with --dry-run; 1 refused, or
an error.`,
		Example: `  rabbitdelay retire -f delays.yaml --dry-run
  rabbitdelay retire -f delays.yaml`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			err := r.run(c.Context())
			if err == nil && !r.dryRun {
				a.Notef("note: delay.previous is still in the settings: %s", doctor.RetiredAdvice)
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&r.dryRun, "dry-run", false, "show what would go and what would stay, and delete nothing")
	f.BoolVar(&r.all, "all", false, "list every object")
	return c
}

// choosePrevious has the previous layouts go. The file names them, so their objects
// go although names of the ttl strategy's and of the plugin's do not tell whose they
// are.
func (r *destroyRun) choosePrevious(s *setup) (err error) {
	if len(s.cfg.Delay.Previous) == 0 {
		return errors.New("delay.previous is empty, so there is nothing to retire; list the earlier layouts there, or delete one that no file describes with destroy --layout")
	}
	if s.want, err = s.cfg.DescribePrevious(s.strategy); err != nil {
		return err
	}
	for _, q := range s.want.Queues {
		r.layouts = append(r.layouts, q.Name)
	}
	for _, e := range s.want.Exchanges {
		r.layouts = append(r.layouts, e.Name)
	}
	return nil
}
