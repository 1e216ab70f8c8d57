package cli

import (
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// applied is the result of apply.
type applied struct {
	Created int     `json:"created"`
	Existed int     `json:"existed"`
	Failed  int     `json:"failed"`
	Untried int     `json:"not_tried"`
	Unknown int     `json:"unknown"`
	Source  string  `json:"source"`
	Seconds float64 `json:"seconds"`
}

func (a *app) applyCommand() *cobra.Command {
	force := false
	c := &cobra.Command{
		Use:   "apply",
		Short: "Create what is missing on the broker",
		Long: `apply declares what the settings and the file describe: exchanges, queues and
bindings. It may run again, and in many processes at once; it deletes and changes
nothing. It refuses, before it touches anything, when an object exists with other
arguments, or when a policy would break a delay queue or lose dead letters (unless
--force).`,
		Example: `  rabbitdelay apply -f delays.yaml`,
		Args:    program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.setup(c.Context())
			if err != nil {
				return err
			}
			defer s.close()
			r, err := s.broker.Apply(c.Context(), s.want, live.ApplyOptions{Force: force, Prefix: s.cfg.Delay.Prefix})
			if err == nil {
				err = s.broker.MarkDeclared(c.Context(), s.cfg.Delay.Prefix, s.strategy.Topology())
			}
			if r.Plan != nil {
				if perr := a.showPlan(*r.Plan); perr != nil {
					return perr
				}
			}
			if a.JSON {
				out := applied{
					Created: r.Count(live.StateCreated), Existed: r.Count(live.StateExisted) + r.Count(live.StateDeclared),
					Failed: r.Count(live.StateFailed), Untried: r.Count(live.StateUntried), Unknown: r.Count(live.StateUnknown),
					Source: "AMQP", Seconds: seconds(r.Took),
				}
				if s.readable {
					out.Source = "management API"
				}
				if perr := a.PrintJSON(out); perr != nil {
					return perr
				}
			} else {
				a.Printf("%s in %.2f s\n", r, r.Took.Seconds())
			}
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "apply although policies would break delays or lose dead letters")
	return c
}
