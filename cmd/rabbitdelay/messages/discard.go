package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// DiscardCommand returns the command discard.
func DiscardCommand(a *app.App) *cobra.Command {
	r := &requeueRun{Consent: app.Consent{App: a}, o: inspect.RequeueOptions{Discard: true, InFlight: 250}}
	c := &cobra.Command{
		Use:   "discard",
		Short: "Remove dead letters or parked messages, and keep them in a file",
		Long: `discard removes messages from a dead-letter queue, or from the parked queue: those
that nobody wants any more, and those that cannot be sent back because their
headers are beyond what a Go client can read (--reason unreadable). It counts those
that are chosen, asks, and removes at most so many. The row of a task stays what it
is.

It writes them to --save first: a line of JSON for each, with all properties,
headers and the body, in a new file that only its owner may read. A message is
removed when its line is safe on disk. So whatever happens, an interruption, a full
disk or kill -9, a message is in the queue, in the file, or in both. "rabbitdelay
requeue --from FILE" sends them again, also after an editor has mended a body.
--no-save keeps nothing.

What is not chosen stays in its place, at the costs that "rabbitdelay requeue
--help" names for RabbitMQ before 4.3.

Exit code: 0 all that was chosen was removed, or with --dry-run could be; 2 some of
it stayed; 1 error.`,
		Example: `  rabbitdelay discard --queue orders.expire.dead --reason rejected --save rejected.jsonl
  rabbitdelay discard --queue orders.expire.dead --older-than 720h --dry-run
  rabbitdelay discard --parked --destination orders.gone --no-save`,
		RunE: func(c *cobra.Command, _ []string) error { return r.requeue(c.Context()) },
	}
	f := c.Flags()
	r.choiceFlags(f)
	f.StringVar(&r.file, "save", "", "the new `file` for the messages")
	f.BoolVar(&r.noFile, "no-save", false, "lose them for good")
	return c
}

func (r *requeueRun) countDiscarded(ctx context.Context) (app.Question, error) {
	o := r.o
	o.DryRun = true
	rep, err := inspect.Requeue(ctx, r.client, o)
	if err != nil {
		return app.Question{}, err
	}
	if rep.Discarded == 0 {
		return app.Question{}, errors.New("none of the messages is chosen; nothing was discarded")
	}
	r.o.Limit = rep.Discarded
	how := "for good"
	if r.file != "" {
		how = "and keep them in " + shown.Line(r.file)
	}
	return app.Question{
		Text: fmt.Sprintf("Discard %s of %s in %s %s? Type yes: ",
			shown.Number(rep.Discarded), shown.Count(r.ready, "message", "messages"), shown.Line(r.o.Queue), how),
		Declined: "no message was discarded",
	}, nil
}
