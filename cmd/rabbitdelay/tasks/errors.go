package tasks

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

func (x *tasks) errorsCommand() *cobra.Command {
	var flags filterFlags
	var o schedule.ErrorGroupOptions
	c := &cobra.Command{
		Use:   "errors",
		Short: "Group failed tasks by their errors",
		Long: `errors groups failed tasks by destination and error. Errors count as the same if they
differ only in numbers, ids and quoted parts. Each group has the number of its tasks,
when the first and the last of them failed, and an example. The other commands take the
text of a group with --error-like: "tasks list" shows the tasks of the group, "tasks
revive" and "tasks delete" count and change them.

With --status pending it groups the errors of attempts that are tried again.`,
		Example: `  rabbitdelay tasks errors --order most
  rabbitdelay tasks revive --queue mail --error-like "payment provider: #" --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			switch {
			case err != nil:
				return err
			case o.Limit < 1 || o.Limit > schedule.MaxGroups:
				return fmt.Errorf("--limit: %d; expected 1 to %d", o.Limit, schedule.MaxGroups)
			case o.Look < 1 || o.Look > schedule.MaxLook:
				return fmt.Errorf("--look: %d; expected 1 to %d", o.Look, schedule.MaxLook)
			}
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				g, err := s.ErrorGroups(ctx, schedule.NoTx, f, o)
				if err != nil {
					return err
				}
				return x.printErrors(g)
			})
		},
	}
	flags.register(c)
	c.Flags().IntVar(&o.Limit, "limit", schedule.DefaultGroups, "the most groups to show; the tasks of the others are counted")
	c.Flags().IntVar(&o.Look, "look", schedule.DefaultLook, "the most tasks to read, the newest first")
	program.Choice(c, (*string)(&o.Order), "order", string(schedule.GroupsNewest), "which groups come first: those with the newest tasks, the oldest, or the most",
		string(schedule.GroupsNewest), string(schedule.GroupsOldest), string(schedule.GroupsMost))
	return c
}

func (x *tasks) printErrors(g schedule.ErrorGroups) error {
	if x.JSON {
		return x.PrintJSON(g)
	}
	if len(g.Groups) == 0 {
		x.Notef("no such tasks")
		return nil
	}
	const maxExample = 200
	now := time.Now()
	for i, e := range g.Groups {
		x.Printf("%d. %s\n", i+1, shown.Line(cmp.Or(e.ErrorLike, "(no error is known)")))
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
		x.Notef("note: only the newest %s were read, so a group may have more tasks; --look reads more", shown.Count(g.Looked, "task", "tasks"))
	}
	return nil
}
