package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// DiscardCommand returns the discard command, which removes dead letters or parked messages after saving them.
func DiscardCommand(a *app.App) *cobra.Command {
	r := &requeueRun{Consent: app.Consent{App: a}, o: inspect.RequeueOptions{Discard: true, InFlight: 250}}
	c := &cobra.Command{
		Use:   "discard",
		Short: "Remove dead letters or parked messages and save them in a file",
		Long: `Remove dead letters or parked messages, after saving each in a file.
"rabbitdelay requeue --from FILE" sends them again.`,
		Example: `  rabbitdelay discard --queue orders.expire.dead --reason rejected \
    --save rejected.jsonl
  rabbitdelay discard --queue orders.expire.dead --older-than 720h --dry-run
  rabbitdelay discard --parked --destination orders.gone --no-save`,
		RunE: func(c *cobra.Command, _ []string) error { return r.requeue(c.Context()) },
	}
	f := c.Flags()
	r.choiceFlags(f)
	f.IntVar(&r.o.Limit, "limit", 0, "maximum number of messages to discard; 0 for all")
	f.StringVar(&r.file, "save", "", "save the messages to this `file`, which must not exist yet")
	f.BoolVar(&r.noFile, "no-save", false, "remove the messages without saving them")
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
		return app.Question{}, errors.New("no message matches; nothing was discarded")
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
