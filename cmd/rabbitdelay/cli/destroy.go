package cli

import (
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// destroyed is the result of destroy.
type destroyed struct {
	Deleted  int     `json:"deleted"`
	Absent   int     `json:"absent"`
	Kept     int     `json:"kept"`
	Failed   int     `json:"failed"`
	Messages int64   `json:"messages_deleted"`
	Seconds  float64 `json:"seconds"`
}

func (a *app) destroyCommand() *cobra.Command {
	force := false
	c := &cobra.Command{
		Use:   "destroy",
		Short: "Delete what apply creates",
		Long: `destroy deletes what the settings and the file describe, and nothing else. It
refuses while any of the queues holds messages, and says how many; with --force
it deletes them too. Exchanges that others have bound to stay, unless forced.`,
		Example: `  rabbitdelay destroy -f delays.yaml`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.setup(c.Context())
			if err != nil {
				return err
			}
			defer s.close()
			o := topology.DestroyOptions{Force: force}
			if s.readable { // the other one is Destroy's own
				o.Inspector = s.inspector
			}
			r, err := topology.Destroy(c.Context(), s.conn, s.want, o)
			out := destroyed{
				Deleted: r.Count(topology.Deleted), Absent: r.Count(topology.Absent), Kept: r.Count(topology.Kept),
				Failed: r.Count(topology.Failed), Seconds: seconds(r.Took),
			}
			for _, x := range r.Results {
				out.Messages += x.Messages
			}
			if a.json {
				if perr := a.printJSON(out); perr != nil {
					return perr
				}
				return err
			}
			if !a.quiet {
				for _, x := range r.Results {
					if x.State == topology.Failed || x.State == topology.Kept && err == nil {
						a.printf("%-8s %s %s\n", x.State, x.Kind, x.Name)
					}
				}
			}
			a.printf("%s", r)
			if out.Messages > 0 {
				a.printf(", with %d messages", out.Messages)
			}
			a.printf(" in %.2f s\n", r.Took.Seconds())
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "delete queues with their messages, and exchanges that others use")
	return c
}
