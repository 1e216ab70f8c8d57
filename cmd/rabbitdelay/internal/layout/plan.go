package layout

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// PlanCommand returns the plan command, which shows what apply would create.
func PlanCommand(a *app.App) *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what apply would create on the broker",
		Long: `Compare the broker with the settings and the file, and show what "rabbitdelay
apply" would create. It changes nothing.`,
		Example: `  rabbitdelay plan -f delays.yaml
  rabbitdelay plan --json | jq .create`,
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := a.Broker(c.Context())
			if err != nil {
				return err
			}
			defer b.Close()
			found, err := b.Inspect(c.Context(), b.Want)
			if err != nil {
				return fmt.Errorf("plan: %w", err)
			}
			var existing []string
			for _, q := range b.Want.Queues {
				if _, there := found.Queues[q.Name]; there {
					existing = append(existing, q.Name)
				}
			}
			if err := snapshot.Leaderless(c.Context(), b.Config.Dial, b.Config.Delay.Prefix, found.Queues, existing, b.Readable); err != nil {
				return fmt.Errorf("plan: %w", err)
			}
			return Planned(a, plan.Compare(b.Want, found), all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list every object")
	return c
}

// Planned prints a plan and returns the error of a command that shows a plan: the reason if the plan cannot be carried
// out, or else ExitToDo if the plan is not empty or has bindings that could not be verified, or ExitUnseen if existing
// queues do not answer.
func Planned(a *app.App, p plan.Plan, all bool) (err error) {
	if a.JSON {
		err = a.PrintJSON(p)
	} else if !a.Quiet {
		err = p.Render(a.Stdout, a.ReportStyle(), all)
	}
	if err != nil {
		return err
	}
	var errs []error
	if n := p.Count(plan.ActionConflict); n > 0 {
		errs = append(errs, fmt.Errorf("%s on the broker with different arguments", shown.Count(n, "object exists", "objects exist")))
	}
	if n := len(p.Grave()); n > 0 {
		errs = append(errs, fmt.Errorf("policies would break delays or lose dead letters, in %s", shown.Count(n, "case", "cases")))
	}
	errs = append(errs, p.Quota())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !p.Empty() || p.Count(plan.ActionUnverified) > 0 {
		return program.Exit(app.ExitToDo)
	}
	if len(p.Unavailable()) > 0 {
		return program.Exit(app.ExitUnseen)
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

// ApplyCommand returns the apply command, which creates what is missing on the broker.
func ApplyCommand(a *app.App) *cobra.Command {
	force := false
	c := &cobra.Command{
		Use:   "apply",
		Short: "Create what is missing on the broker",
		Long: `Create the exchanges, queues and bindings that the settings and the file define
and the broker lacks. It changes and deletes nothing. It is safe to run
repeatedly, and from several processes at the same time.`,
		Example: `  rabbitdelay apply -f delays.yaml
  rabbitdelay apply -f delays.yaml --json | jq .created`,
		RunE: func(c *cobra.Command, _ []string) error { return apply(c.Context(), a, force) },
	}
	c.Flags().BoolVar(&force, "force", false, "apply even if policies would break delays or lose dead letters")
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
		if perr := r.Plan.Render(a.Stdout, a.ReportStyle(), false); perr != nil {
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
