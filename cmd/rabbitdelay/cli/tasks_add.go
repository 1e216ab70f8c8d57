package cli

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// adding is one run of tasks add.
type adding struct {
	x       *tasks
	task    schedule.Task
	when    when
	body    string
	headers []string
	replace bool
	expires duration
}

func (x *tasks) addCommand() *cobra.Command {
	r := &adding{x: x}
	c := &cobra.Command{
		Use:   "add",
		Short: "Schedule a task",
		Long: `add schedules a task, due now unless --delay or --at is given. An id that exists
is an error, unless --replace puts the task in its place.`,
		Example: `  rabbitdelay tasks add --id post-7 --queue posts.publish --at "tomorrow 08:00 Europe/Berlin" --body '{"post":7}'`,
		Args:    program.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f, t := c.Flags(), &r.task
	f.StringVar(&t.ID, "id", "", "the task's id; default a UUIDv7")
	f.StringVar(&t.Queue, "queue", "", "destination queue")
	f.StringVar(&t.Exchange, "exchange", "", "destination exchange, with --routing-key")
	f.StringVar(&t.RoutingKey, "routing-key", "", "routing key of --exchange")
	r.when.register(c, "; default now")
	f.StringVar(&r.body, "body", "", "the body; @file reads a file, - reads standard input")
	f.StringVar(&t.ContentType, "content-type", "", "content type of the body")
	f.StringVar(&t.Type, "type", "", "the message's type")
	f.StringVar(&t.CorrelationID, "correlation-id", "", "the message's correlation id")
	f.Uint8Var(&t.Priority, "priority", 0, "the message's priority, 0 to 255")
	f.Var(&r.expires, "expires-after", "how long after its due instant the task is no longer worth doing; default never")
	f.StringArrayVar(&r.headers, "header", nil, "a header, `name=value`; repeatable")
	f.StringArrayVar(&t.Tags, "tag", nil, "a `tag`, by which the task is found; repeatable")
	f.BoolVar(&r.replace, "replace", false, "take the place of a task with the same id")
	return c
}

func (r *adding) run(ctx context.Context) error {
	if err := r.complete(); err != nil {
		return err
	}
	var opts []schedule.Option
	if r.replace {
		opts = append(opts, schedule.Replace())
	}
	return r.x.on(ctx, func(ctx context.Context, _ *sql.DB, s *schedule.Store) error {
		if err := s.Schedule(ctx, nil, r.task, opts...); err != nil {
			return err
		}
		added, err := s.Get(ctx, nil, r.task.ID)
		if err != nil {
			return err
		}
		return r.x.changed(added)
	})
}

// complete reads what the flags only name.
func (r *adding) complete() (err error) {
	if r.task.DeliverAt, err = r.when.instant(r.x.a); err != nil {
		return err
	}
	r.task.ExpiresAfter = time.Duration(r.expires)
	if r.task.Body, err = readBody(r.body, r.x.a.Stdin); err != nil {
		return err
	}
	if r.task.Headers, err = textHeaders(r.headers); err != nil {
		return err
	}
	if r.task.ID != "" {
		return nil
	}
	id, err := uuid.NewV7()
	r.task.ID = id.String()
	return err
}

// textHeaders are those of a task, from name=value pairs.
func textHeaders(flags []string) (map[string]string, error) {
	pairs, err := parseHeaders(flags)
	if err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(pairs))
	for k, v := range pairs {
		headers[k], _ = v.(string) // parseHeaders makes only texts
	}
	return headers, nil
}
