package layout

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// PlanCommand returns the command plan.
func PlanCommand(a *app.App) *cobra.Command {
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
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := a.Broker(c.Context())
			if err != nil {
				return err
			}
			defer b.Close()
			p, err := b.Plan(c.Context(), b.Want)
			if err != nil {
				return err
			}
			return Planned(a, p, all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list every object")
	return c
}

// Planned prints a plan and returns the error of a command that shows a plan. This is an error if the plan cannot be
// carried out, or else ExitToDo if the plan is not empty.
func Planned(a *app.App, p plan.Plan, all bool) (err error) {
	if a.JSON {
		err = a.PrintJSON(p)
	} else if !a.Quiet {
		err = p.Render(a.Stdout, all)
	}
	if err != nil {
		return err
	}
	var errs []error
	if n := p.Count(plan.ActionConflict); n > 0 {
		errs = append(errs, fmt.Errorf("%d objects exist on the broker with other arguments", n))
	}
	if n := len(p.Grave()); n > 0 {
		errs = append(errs, fmt.Errorf("policies would break delays or lose dead letters, in %s", shown.Count(n, "case", "cases")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !p.Empty() || p.Count(plan.ActionUnverified) > 0 {
		return program.Exit(app.ExitToDo)
	}
	return nil
}

type applied struct {
	Created int     `json:"created"`
	Existed int     `json:"existed"`
	Failed  int     `json:"failed"`
	Untried int     `json:"not_tried"`
	Unknown int     `json:"unknown"`
	Source  string  `json:"source"`
	Seconds float64 `json:"seconds"`
}

// ApplyCommand returns the command apply.
func ApplyCommand(a *app.App) *cobra.Command {
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
		RunE:    func(c *cobra.Command, _ []string) error { return apply(c.Context(), a, force) },
	}
	c.Flags().BoolVar(&force, "force", false, "apply although policies would break delays or lose dead letters")
	return c
}

func apply(ctx context.Context, a *app.App, force bool) error {
	b, err := a.Broker(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	r, err := b.Apply(ctx, b.Want, live.ApplyOptions{Force: force, Prefix: b.Config.Delay.Prefix})
	if err == nil {
		err = b.MarkDeclared(ctx, b.Config.Delay.Prefix, b.Strategy.Topology())
	}
	if r.Plan != nil && !a.JSON && !a.Quiet {
		if perr := r.Plan.Render(a.Stdout, false); perr != nil {
			return perr
		}
	}
	out := applied{
		Created: r.Count(live.StateCreated), Existed: r.Count(live.StateExisted) + r.Count(live.StateDeclared),
		Failed: r.Count(live.StateFailed), Untried: r.Count(live.StateUntried), Unknown: r.Count(live.StateUnknown),
		Source: "AMQP", Seconds: app.Seconds(r.Took),
	}
	if b.Readable {
		out.Source = "management API"
	}
	if perr := a.Show(out, "%s in %.2f s\n", r, r.Took.Seconds()); perr != nil {
		return perr
	}
	return err
}
