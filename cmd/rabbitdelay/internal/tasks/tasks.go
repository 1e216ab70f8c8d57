package tasks

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

type tasks struct{ *app.App }

// Command returns the tasks command, which lists and changes scheduled tasks.
func Command(a *app.App) *cobra.Command {
	x := &tasks{a}
	c := &cobra.Command{
		Use:   "tasks",
		Short: "List and change scheduled tasks",
		Long: `List and change the scheduled tasks of a business database. A change takes
effect even if the task's message is already on the broker.`,
		Example: `  rabbitdelay tasks list --status failed
  rabbitdelay tasks reschedule order-42-expire --delay 30m
  rabbitdelay tasks cancel --queue mail --tag campaign-7`,
	}
	app.DatabaseFlag(c.PersistentFlags(), "")
	c.AddCommand(
		x.listCommand(), x.showCommand(), x.countCommand(), x.errorsCommand(), x.addCommand(),
		x.cancelCommand(), x.rescheduleCommand(), x.runCommand(), x.reviveCommand(), x.deleteCommand(),
		x.pauseCommand(), x.resumeCommand(), x.rateLimitCommand(), x.heldCommand(),
	)
	return c
}

func someTasks(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no task id was given; give one or more; see %s --help", c.CommandPath())
	}
	return nil
}

type refused struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// each calls the function do for every id, and the function show for the resulting task. If do fails for an id, the
// error is printed as a line on standard error and, with --json, as an object on standard output. The other ids are
// still processed.
func (x *tasks) each(ids []string, do func(id string) (schedule.TaskRow, error), show func(schedule.TaskRow) error) error {
	code := program.ExitOK
	for _, id := range ids {
		t, err := do(id)
		if err == nil {
			if err := show(t); err != nil {
				return err
			}
			continue
		}
		err = advise(err)
		code = program.ExitError
		x.PrintError(err)
		if x.JSON {
			if err := x.PrintJSON(refused{id, err.Error()}); err != nil {
				return err
			}
		}
	}
	return program.Exit(code)
}

func advise(err error) error {
	if se, ok := errors.AsType[*schedule.StatusError](err); ok {
		return fmt.Errorf("%w; %s", err, remedy(se))
	}
	if errors.Is(err, schedule.ErrNotFound) {
		return fmt.Errorf("%w; \"rabbitdelay tasks list\" shows the existing tasks; finished tasks are deleted after a while", err)
	}
	return err
}

func remedy(e *schedule.StatusError) string {
	switch {
	case e.Status == schedule.StatusPending:
		return "the task is still waiting; use reschedule or run"
	case e.Status == schedule.StatusFailed && e.Action == "cancel":
		return "the task has failed permanently, so there is nothing to cancel"
	case e.Status == schedule.StatusFailed:
		return "use revive"
	case e.Status == schedule.StatusCancelled && e.Action == "cancel":
		return "there is nothing to do"
	case e.Status == schedule.StatusDone:
		return "the task is done; to repeat it, schedule a task with another id"
	}
	return "to run the task after all, schedule a task with another id, or replace the task"
}

func (x *tasks) changed(t schedule.TaskRow) error {
	t.Body = nil // the change did not affect the body
	due := ""
	if t.Status == schedule.StatusPending {
		due = fmt.Sprintf(", due %s, version %d", term.When(t.DueSince(), time.Now()), t.Version)
	}
	return x.Show(asjson.TaskOf(t), "%s: %s%s\n", shown.Line(t.ID), t.Status, due)
}
