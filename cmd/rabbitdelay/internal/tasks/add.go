package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// MessageFlags are the flags for the destination and the message of a task.
type MessageFlags struct {
	task       schedule.Task
	properties []*propertyFlag
	body       string
	headers    []string
}

// propertyFlag is the flag of a property. It implements pflag.Value.
type propertyFlag struct {
	taskview.Property
	text string
}

func (f *propertyFlag) String() string { return f.text }

// Set implements pflag.Value.
func (f *propertyFlag) Set(text string) error {
	f.text = text
	return f.Property.Set(&schedule.Task{}, text)
}

// Register adds the flags. The parameter list is appended to the help text of repeatable flags.
func (m *MessageFlags) Register(f *pflag.FlagSet, list string) {
	t := &m.task
	f.StringVar(&t.Queue, "queue", "", "destination queue")
	f.StringVar(&t.Exchange, "exchange", "", "destination exchange, with --routing-key")
	f.StringVar(&t.RoutingKey, "routing-key", "", "routing key for --exchange")
	f.StringVar(&m.body, "body", "", "the body; @file reads a file, - reads standard input")
	for _, p := range taskview.Properties {
		property := &propertyFlag{Property: p}
		m.properties = append(m.properties, property)
		f.Var(property, p.Flag(), p.Help)
	}
	f.StringArrayVar(&m.headers, "header", nil, "set the header `name=value`; repeatable"+list)
	f.StringArrayVar(&t.Tags, "tag", nil, "a `tag` for finding the task; repeatable"+list)
}

// Apply changes the task according to the flags that were given.
func (m *MessageFlags) Apply(a *app.App, t *schedule.Task) (err error) {
	if err := a.Exclusive("queue", "exchange"); err != nil {
		return err
	}
	for _, given := range []struct {
		flag string
		set  func()
	}{
		{"queue", func() { t.Queue, t.Exchange, t.RoutingKey = m.task.Queue, "", "" }},
		{"exchange", func() { t.Queue, t.Exchange = "", m.task.Exchange }},
		{"routing-key", func() { t.RoutingKey = m.task.RoutingKey }},
		{"body", func() { t.Body, err = app.ReadBody(m.body, a.Stdin) }},
		{"header", func() { t.Headers, err = app.ParseHeaders(m.headers) }},
		{"tag", func() { t.Tags = m.task.Tags }},
	} {
		if a.Given(given.flag) {
			given.set()
		}
		if err != nil {
			return err
		}
	}
	for _, p := range m.properties {
		if a.Given(p.Flag()) {
			if err := p.Property.Set(t, p.text); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *tasks) addCommand() *cobra.Command {
	var message MessageFlags
	var w when
	var unique uniqueFlags
	id, replace := "", false
	c := &cobra.Command{
		Use:   "add",
		Short: "Schedule a task",
		Long: `Schedule a task, due now unless --delay or --at is given. With --unique-key, at
most one pending task has that key.`,
		Example: `  rabbitdelay tasks add --id post-7 --queue posts.publish \
    --at "tomorrow 08:00 Europe/Berlin" --body '{"post":7}'
  rabbitdelay tasks add --unique-key reindex-42 --on-conflict push-back \
    --delay 5s --max-wait 1m --queue search.reindex`,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			t := schedule.Task{ID: id}
			if t.DeliverAt, err = w.instant(x.App); err != nil {
				return err
			}
			if err := message.Apply(x.App, &t); err != nil {
				return err
			}
			if err := unique.check(x.App); err != nil {
				return err
			}
			if unique.key != "" {
				return x.addUnique(c.Context(), t, unique)
			}
			return x.add(c.Context(), t, replace)
		},
	}
	f := c.Flags()
	f.StringVar(&id, "id", "", "the task's id; default: a new UUIDv7")
	w.registerDue(c, "; default: now")
	message.Register(f, "")
	f.BoolVar(&replace, "replace", false, "replace a task that has the same id")
	unique.register(c)
	return c
}

func (x *tasks) add(ctx context.Context, t schedule.Task, replace bool) error {
	t.Replace = replace
	if t.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		t.ID = id.String()
	}
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		if err := s.Schedule(ctx, schedule.NoTx, t); err != nil {
			return err
		}
		added, err := s.Get(ctx, schedule.NoTx, t.ID)
		if err != nil {
			return err
		}
		return x.changed(added)
	})
}

// uniqueFlags control what add does if there are other tasks with the same unique key.
type uniqueFlags struct {
	key string
	schedule.Unique
}

func (u *uniqueFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&u.key, "unique-key", "", "a key, such as the subject of the task; at most one pending task has this key")
	program.Choice(c, (*string)(&u.OnConflict), "on-conflict", string(schedule.KeepPending), "with --unique-key, what happens to a pending task that has the key",
		string(schedule.KeepPending), string(schedule.ReplacePending), string(schedule.PushBackPending))
	f.Var((*app.Duration)(&u.MaxWait), "max-wait", "with --on-conflict push-back, the longest time from when a task was scheduled until it is due")
	f.Var((*app.Duration)(&u.Cooldown), "cooldown", "with --unique-key, refuse the task while another one with the key is running, and for this long after it is done")
}

// check returns an error for flags that require --unique-key, or that exclude it.
func (u *uniqueFlags) check(a *app.App) error {
	if u.key != "" {
		return a.Exclusive("unique-key", "replace")
	}
	for _, name := range []string{"unique-key", "on-conflict", "max-wait", "cooldown"} {
		if a.Given(name) {
			return fmt.Errorf("--%s only works with --unique-key; add a key, such as --unique-key reindex-42", name)
		}
	}
	return nil
}

type uniqueTask struct {
	Outcome string `json:"outcome"`
	asjson.Task
}

func (x *tasks) addUnique(ctx context.Context, t schedule.Task, u uniqueFlags) error {
	t.UniqueKey = u.key
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		r, err := s.ScheduleUnique(ctx, schedule.NoTx, t, u.Unique)
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
