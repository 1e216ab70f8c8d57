package tasks

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

type tasks struct{ *app.App }

// Command returns the command tasks.
func Command(a *app.App) *cobra.Command {
	x := &tasks{a}
	c := &cobra.Command{
		Use:   "tasks",
		Short: "Look at, cancel, move, fire and revive scheduled tasks",
		Long: `tasks works on the table rabbitdelay_tasks of a business database. The row decides,
wherever the task's message is, and a relay does the sending: only revive talks to
the broker, to remove dead letters.

list, count and errors select tasks by destination, status, due instant, id prefix,
tag, header and error. cancel, reschedule, fire, revive and delete take ids and change
each task in its own transaction, or take the same filters: they then count the
tasks, ask, and change them in batches. pause, resume and ceiling take a destination.

Exit code: 0 done; 1 error, as when a task does not exist or its status does not
allow the change.`,
		Example: `  rabbitdelay tasks list --db postgres://user:password@host/shop --status failed
  rabbitdelay tasks reschedule order-42-expire --delay 30m
  rabbitdelay tasks cancel --queue mail --tag campaign-7
  rabbitdelay tasks reschedule --queue mail --at "tomorrow 08:00 Europe/Berlin" --spread 10m`,
	}
	app.DatabaseFlag(c.PersistentFlags(), "")
	c.AddCommand(
		x.listCommand(), x.showCommand(), x.countCommand(), x.errorsCommand(), x.addCommand(),
		x.cancelCommand(), x.rescheduleCommand(), x.fireCommand(), x.reviveCommand(), x.deleteCommand(),
		x.pauseCommand(), x.resumeCommand(), x.ceilingCommand(), x.heldCommand(),
	)
	return c
}

func someTasks(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no task id; give one or more; see %s --help", c.CommandPath())
	}
	return nil
}

type refused struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// each calls do for every id and shows the resulting task. If do fails for an id, each prints its error as a line on
// standard error and continues with the other ids.
func (x *tasks) each(ids []string, do func(id string) (schedule.Task, error), show func(schedule.Task) error) error {
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
		return fmt.Errorf("%w; \"rabbitdelay tasks list\" shows those there are; finished ones are deleted after a while", err)
	}
	return err
}

func remedy(e *schedule.StatusError) string {
	switch {
	case e.Status == schedule.StatusPending:
		return "it still waits; use reschedule or fire"
	case e.Status == schedule.StatusFailed && e.Action == "cancel":
		return "it has failed for good, so there is nothing to cancel"
	case e.Status == schedule.StatusFailed:
		return "use revive"
	case e.Status == schedule.StatusCancelled && e.Action == "cancel":
		return "there is nothing to do"
	case e.Status == schedule.StatusDone:
		return "its effect has happened; to repeat it, schedule a task with another id"
	}
	return "to run it after all, schedule a task with another id, or replace it"
}

func (x *tasks) changed(t schedule.Task) error {
	t.Body = nil // the change did not affect the body
	due := ""
	if t.Status == schedule.StatusPending {
		due = fmt.Sprintf(", due %s, version %d", term.When(t.DueSince(), time.Now()), t.Version)
	}
	return x.Show(asjson.TaskOf(t), "%s: %s%s\n", shown.Line(t.ID), t.Status, due)
}
