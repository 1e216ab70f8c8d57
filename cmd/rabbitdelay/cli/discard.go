package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

func (a *app) discardCommand() *cobra.Command {
	r := &requeueRun{a: a, o: amqpx.RequeueOptions{Discard: true, InFlight: 100}}
	c := &cobra.Command{
		Use:   "discard",
		Short: "Remove dead letters or parked messages for good",
		Long: `discard removes messages from a dead-letter queue, or from the parked queue, for
good: those that nobody wants any more, and those that cannot be sent back because
their headers are beyond what a Go client can read (--reason unreadable). It counts
those that are chosen, asks, and removes at most so many. The row of a task stays
what it is.

What is not chosen stays in its place, at the costs that "rabbitdelay requeue
--help" names for RabbitMQ before 4.3.

Exit code: 0 removed, or with --dry-run could be; 1 error.`,
		Example: `  rabbitdelay discard --queue orders.expire.dead --reason unreadable
  rabbitdelay discard --queue orders.expire.dead --older-than 720h --dry-run
  rabbitdelay discard --parked --destination orders.gone`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	r.choiceFlags(c.Flags())
	return c
}

// countDiscarded counts what discard would remove, to which the run is then limited,
// and returns the question.
func (r *requeueRun) countDiscarded(ctx context.Context, c *amqpx.Client) (ask func(ready int) error, err error) {
	o := r.o
	o.DryRun = true
	rep, err := c.Requeue(ctx, o)
	if err != nil {
		return nil, err
	}
	if rep.Discarded == 0 {
		return nil, errors.New("none of the messages is chosen; nothing was discarded")
	}
	r.o.Limit = rep.Discarded
	return func(ready int) error {
		return r.yesTo("no message was discarded", "Discard %s of %s in %s for good? Type yes: ",
			grouped(int64(rep.Discarded)), counted(int64(ready), "message"), shown.Line(r.o.Queue))
	}, nil
}
