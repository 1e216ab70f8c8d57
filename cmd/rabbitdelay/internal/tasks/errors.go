package tasks

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

func (x *tasks) errorsCommand() *cobra.Command {
	var flags filterFlags
	var o taskview.ErrorGroupOptions
	c := &cobra.Command{
		Use:   "errors",
		Short: "Group failed tasks by error",
		Long: `Group failed tasks by destination and error. Other commands select the tasks of
a group with --error-like.`,
		Example: `  rabbitdelay tasks errors --order most
  rabbitdelay tasks list --error-like "payment provider: #"
  rabbitdelay tasks revive --error-like "payment provider: #" --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			switch {
			case err != nil:
				return err
			case o.Limit < 1 || o.Limit > taskview.MaxGroups:
				return fmt.Errorf("--limit: %d; expected 1 to %d", o.Limit, taskview.MaxGroups)
			case o.Sample < 1 || o.Sample > taskview.MaxSample:
				return fmt.Errorf("--sample: %d; expected 1 to %d", o.Sample, taskview.MaxSample)
			}
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				g, err := s.ErrorGroups(ctx, f, o)
				if err != nil {
					return err
				}
				return x.printErrors(g)
			})
		},
	}
	flags.register(c)
	c.Flags().IntVar(&o.Limit, "limit", taskview.DefaultGroups, "maximum number of groups to show; the tasks of other groups are only counted")
	c.Flags().IntVar(&o.Sample, "sample", taskview.DefaultSample, "maximum number of tasks to read, newest first")
	program.Choice(c, (*string)(&o.Order), "order", string(taskview.GroupsNewest), "sort groups by their newest or oldest task, or by size",
		string(taskview.GroupsNewest), string(taskview.GroupsOldest), string(taskview.GroupsMost))
	return c
}

func (x *tasks) printErrors(g taskview.ErrorGroups) error {
	if x.JSON {
		return x.PrintJSON(g)
	}
	if len(g.Groups) == 0 {
		x.Notef("no matching tasks")
		return nil
	}
	const maxExample = 200
	now := time.Now()
	for i, e := range g.Groups {
		x.Printf("%d. %s\n", i+1, shown.Line(cmp.Or(e.ErrorLike, "(unknown error)")))
		t := x.Table()
		t.Row("   tasks", shown.Number(e.Tasks))
		t.Field("   queue", e.Queue)
		t.Field("   exchange", e.Exchange)
		t.When("   first", e.First, now)
		t.When("   last", e.Last, now)
		t.Field("   example", e.ExampleID)
		t.Field("   error", shown.Shorten(e.Example, maxExample))
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if g.Others > 0 {
		x.Printf("%s in other groups; --limit shows more\n", shown.Count(g.Others, "task is", "tasks are"))
	}
	if g.More {
		x.Notef("note: only the newest %s were read, so a group may have more tasks; --sample reads more", shown.Count(g.Sampled, "task", "tasks"))
	}
	return nil
}
