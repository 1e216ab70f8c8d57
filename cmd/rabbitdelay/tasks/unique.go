package tasks

import (
	"context"
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

// uniqueFlags are what add does about other tasks of a unique key.
type uniqueFlags struct {
	key, onPending    string
	maxWait, cooldown app.Duration
}

func (u *uniqueFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&u.key, "unique-key", "", "what the task is about; at most one pending task has the key")
	program.Choice(c, &u.onPending, "on-pending", string(schedule.KeepPending), "with --unique-key, what happens to a pending task of the key",
		string(schedule.KeepPending), string(schedule.ReplacePending), string(schedule.PushBackPending))
	f.Var(&u.maxWait, "max-wait", "with --on-pending push-back, how long after it was scheduled a task is due at the latest")
	f.Var(&u.cooldown, "cooldown", "with --unique-key, refuse the task while one of the key is running, and for so long after one was done")
}

// check returns the error of flags that have no meaning without --unique-key, or with it.
func (u *uniqueFlags) check(a *app.App) error {
	if u.key != "" {
		return a.Exclusive("unique-key", "replace")
	}
	for _, name := range []string{"unique-key", "on-pending", "max-wait", "cooldown"} {
		if a.Given(name) {
			return fmt.Errorf("--%s: expected --unique-key with what the task is about, such as reindex-42", name)
		}
	}
	return nil
}

// uniqueTask is what add --unique-key prints: the task that stands, and what was done.
type uniqueTask struct {
	Outcome string `json:"outcome"`
	asjson.Task
}

func (x *tasks) addUnique(ctx context.Context, t schedule.Task, u uniqueFlags) error {
	t.UniqueKey = u.key
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		r, err := s.ScheduleUnique(ctx, schedule.NoTx, t, schedule.Unique{
			OnPending: schedule.OnPending(u.onPending), MaxWait: time.Duration(u.maxWait), Cooldown: time.Duration(u.cooldown),
		})
		if err != nil {
			return err
		}
		stands, err := s.Get(ctx, schedule.NoTx, r.ID)
		if err != nil {
			return err
		}
		stands.Body = nil
		when := string(stands.Status)
		switch {
		case r.Outcome != schedule.UniqueRefused:
			when = fmt.Sprintf("due %s, version %d", term.When(stands.DeliverAt, time.Now()), stands.Version)
		case !r.Until.IsZero():
			when = "done, and refuses others until " + term.When(r.Until, time.Now())
		}
		return x.Show(uniqueTask{string(r.Outcome), asjson.TaskOf(stands)}, "%s: %s, %s\n", string(r.Outcome), shown.Line(r.ID), when)
	})
}
