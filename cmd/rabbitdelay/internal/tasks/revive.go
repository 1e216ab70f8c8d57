package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (x *tasks) reviveCommand() *cobra.Command {
	var w when
	b := bulk{x: x, did: "revived", of: "failed"}
	c := &cobra.Command{
		Use:   "revive {ID... | FILTER}",
		Short: "Make failed tasks pending again",
		Long: `Make failed tasks pending again, with as many attempts as a new task. They are
due now unless --delay or --at is given. Select the tasks by id or by filters.`,
		Example: `  rabbitdelay tasks revive order-42-expire
  rabbitdelay tasks revive --queue mail --spread 10m`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			at, err := w.instant(x.App)
			if err != nil {
				return err
			}
			err = b.run(c, ids, change.Action{Kind: change.Revive, At: at})
			if len(b.touched) == 0 && b.result.Changed == 0 || c.Context().Err() != nil {
				return err
			}
			queues := []string{b.chosen.Queue}
			for _, t := range b.touched {
				queues = append(queues, t.Queue)
			}
			return errors.Join(err, x.removeDead(c.Context(), queues, ids))
		},
	}
	w.registerDue(c, "; default: now")
	b.register(c)
	b.spreads(c)
	return c
}

// removeDead removes dead letters with these ids whose tasks have newer messages. Without ids, it considers all dead
// letters.
func (x *tasks) removeDead(ctx context.Context, queues, ids []string) error {
	cfg, err := x.Load(nil)
	if err != nil {
		return err
	}
	log := x.Logger().Sugar()
	opening, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, management, err := x.OpenUndeclared(opening, cfg)
	if err != nil {
		log.Infof("the dead letters were not removed, but have no effect: %v", err)
		return nil
	}
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }() // the client is idle, so an error does not matter
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		for _, dead := range deadLetterQueues(cfg, queues) {
			rep, err := inspect.Requeue(ctx, client, inspect.RequeueOptions{
				Queue: dead, Filter: inspect.DeadLetterFilter{IDs: ids, Tasks: true}, Management: management, Tasks: superseded{s.Store},
			})
			if ae, ok := errors.AsType[*amqp.Error](err); ok && (ae.Code == amqp.NotFound || ae.Code == amqp.AccessRefused) {
				log.Infof("%s was not searched: %v", dead, err)
				continue
			}
			if err != nil {
				return err
			}
			if rep.Removed > 0 {
				x.Notef("removed %s from %s", shown.Count(rep.Removed, "dead letter that no longer has an effect", "dead letters that no longer have an effect"), dead)
			}
			if rep.Missed > 0 {
				x.Notef("in %[2]s, %[1]s not examined, because other consumers hold or have removed them; they may include dead letters that no longer have an effect", shown.Count(rep.Missed, "message was", "messages were"), dead)
			}
		}
		return nil
	})
}

// deadLetterQueues returns the dead-letter queues of the file's destinations and of the given queues.
func deadLetterQueues(cfg *config.Config, queues []string) []string {
	destinations := slices.Clone(cfg.Topology.Destinations)
	for _, queue := range queues {
		if queue != "" && !slices.ContainsFunc(destinations, func(d topology.Destination) bool { return d.Queue == queue }) {
			destinations = append(destinations, topology.Destination{Queue: queue})
		}
	}
	var list []string
	for _, d := range destinations {
		if dead := d.DeadLetterQueue(); dead != "" && !slices.Contains(list, dead) {
			list = append(list, dead)
		}
	}
	return list
}

// superseded implements inspect's interface for requeueing tasks. It removes dead letters whose tasks have newer
// messages, and keeps all others.
type superseded struct{ s *taskview.Store }

// RequeueDead implements inspect's interface for requeueing tasks. It neither sends messages nor revives tasks.
func (x superseded) RequeueDead(ctx context.Context, l *inspect.DeadLetter, _ bool) (inspect.RequeueOutcome, string, error) {
	t, err := x.s.Get(ctx, schedule.NoTx, l.ID)
	switch {
	case errors.Is(err, schedule.ErrNotFound), err == nil && t.Version <= l.Version:
		return inspect.RequeueStayed, "its task has no newer message", nil
	case err != nil:
		return "", "", err
	}
	return inspect.RequeueRemoved, "", nil
}
