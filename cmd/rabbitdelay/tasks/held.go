package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// held is one run of a command that pauses, resumes or limits a destination.
type held struct {
	*tasks
	app.Actor

	to     topology.Destination
	detail string // for the audit
}

func (h *held) register(c *cobra.Command) {
	c.Flags().StringVar(&h.to.Queue, "queue", "", "the queue whose tasks these are")
	c.Flags().StringVar(&h.to.Exchange, "exchange", "", "or the exchange, with all its routing keys")
	h.RegisterActor(c.Flags())
}

// apply calls do for the destination and prints its new state. The queue may be given as an argument.
func (h *held) apply(ctx context.Context, args []string, action string, do func(ctx context.Context, s *schedule.Store) error) error {
	if len(args) > 0 {
		if h.to.Queue != "" {
			return fmt.Errorf("both %q and --queue; give one", args[0])
		}
		h.to.Queue = args[0]
	}
	if (h.to.Queue == "") == (h.to.Exchange == "") {
		return errors.New("no destination, or two; give a queue or --exchange")
	}
	cfg, err := h.Load(nil)
	if err != nil {
		return err
	}
	return h.WithStoreOf(ctx, cfg, func(ctx context.Context, s *app.Store) error {
		target := schedule.DestinationState{Queue: h.to.Queue, Exchange: h.to.Exchange}.Name()
		if err := h.Audited(ctx, s.DB, action, target, h.detail, func() error { return do(ctx, s.Store) }); err != nil {
			return err
		}
		list, err := s.Destinations(ctx, schedule.NoTx)
		if err != nil {
			return err
		}
		state := schedule.DestinationState{Queue: h.to.Queue, Exchange: h.to.Exchange}
		for _, x := range list {
			if x.Destination() == h.to {
				state = x
			}
		}
		if err := h.Show(asjson.HeldOf(state), "%s: %s\n", shown.Line(state.Name()), shown.Line(cmp.Or(state.String(), "its tasks are sent"))); err != nil {
			return err
		}
		if state.String() != "" {
			if err := h.noteUnknown(ctx, s, cfg); err != nil {
				return err
			}
		}
		if !state.Paused() {
			return nil
		}
		relays, err := s.Relays(ctx)
		if err != nil {
			return err
		}
		now := time.Now()
		if len(relays) == 0 || !relays[0].Running(now) { // relays are sorted by when they were last seen, newest first
			h.Notef("%s, so nobody takes back the tasks that the broker has: they happen when they are due, until a relay starts", schedule.WhoSends(append([]schedule.Relay{}, relays...), now))
		}
		return nil
	})
}

// noteUnknown prints a note if no file, task or recurring task has the destination, because it may be misspelt.
func (h *held) noteUnknown(ctx context.Context, s *app.Store, cfg *config.Config) error {
	var names []string
	for _, d := range cfg.Topology.Destinations {
		if d.Queue == h.to.Queue && d.Exchange == h.to.Exchange {
			return nil
		}
		names = append(names, cmp.Or(d.Queue, d.Exchange))
	}
	known, err := s.Known(ctx, schedule.NoTx, h.to)
	if err != nil || known {
		return err
	}
	lanes, err := s.Waiting(ctx, schedule.NoTx)
	if err != nil {
		return err
	}
	for _, d := range lanes {
		names = append(names, cmp.Or(d.Queue, d.Exchange))
	}
	name := cmp.Or(h.to.Queue, h.to.Exchange)
	h.Notef("no task, no recurring task and no destination of the file has the name %s%s", shown.Line(name), config.DidYouMean(name, names))
	return nil
}

func (x *tasks) pauseCommand() *cobra.Command {
	h := held{tasks: x}
	c := &cobra.Command{
		Use:   "pause {QUEUE | --exchange EXCHANGE}",
		Short: "Keep the tasks of a destination in the table until resume",
		Long: `pause keeps the tasks of a destination in the table. Every relay of the database goes
by it, also one that starts later. Tasks whose messages the broker has are taken
back within a second or so, before they are due; handlers that have begun end
their tasks. Recurring tasks go on making theirs. To pause what is paused changes
nothing. Consumers are not stopped: what others send comes to them as before.`,
		Example: `  rabbitdelay tasks pause --queue mail
  rabbitdelay tasks resume --queue mail --spread 30m`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			return h.apply(c.Context(), args, "destination.pause", func(ctx context.Context, s *schedule.Store) error {
				return s.Pause(ctx, schedule.NoTx, h.to, h.Name())
			})
		},
	}
	h.register(c)
	return c
}

func (x *tasks) resumeCommand() *cobra.Command {
	h := held{tasks: x}
	var spread app.Duration
	c := &cobra.Command{
		Use:   "resume {QUEUE | --exchange EXCHANGE}",
		Short: "Send the tasks of a paused destination again",
		Long: `resume ends a pause. What came due in it is sent at once, or with --spread at an even
rate over that time; what comes due later does not wait for it. To resume what is
not paused changes nothing.`,
		Example: `  rabbitdelay tasks resume --queue mail --spread 30m`,
		Args:    program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			if spread > 0 {
				h.detail = "over " + topology.FormatDuration(time.Duration(spread))
			}
			return h.apply(c.Context(), args, "destination.resume", func(ctx context.Context, s *schedule.Store) error {
				return s.Resume(ctx, schedule.NoTx, h.to, time.Duration(spread))
			})
		},
	}
	h.register(c)
	c.Flags().Var(&spread, "spread", "send what came due in the pause over this time, up to 30d; less than 1s is at once")
	return c
}

func (x *tasks) ceilingCommand() *cobra.Command {
	h := held{tasks: x}
	var ceiling schedule.Ceiling
	c := &cobra.Command{
		Use:   "ceiling {QUEUE | --exchange EXCHANGE} --per-second N",
		Short: "Bound how many tasks a second come to a destination",
		Long: `ceiling bounds how many tasks come to a destination in a second, over all relays of the
database, at once and until it is changed. --per-second 0 takes the bound away. What is
beyond waits in the table. It stays when a relay starts whose configuration has the same
ceiling as before; one that has another one writes that.`,
		Example: `  rabbitdelay tasks ceiling --queue mail --per-second 50
  rabbitdelay tasks ceiling --queue mail --per-second 0`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			if !x.Given("per-second") {
				return errors.New("no rate; give --per-second, 0 for no ceiling")
			}
			h.detail = "none"
			if ceiling.PerSecond != 0 {
				h.detail = fmt.Sprintf("%g a second", ceiling.PerSecond)
			}
			return h.apply(c.Context(), args, "destination.ceiling", func(ctx context.Context, s *schedule.Store) error {
				ceiling.Queue, ceiling.Exchange = h.to.Queue, h.to.Exchange
				return s.SetCeiling(ctx, schedule.NoTx, ceiling)
			})
		},
	}
	h.register(c)
	c.Flags().Float64Var(&ceiling.PerSecond, "per-second", 0, "tasks a second, such as 50 or 0.1; 0 for no ceiling")
	c.Flags().IntVar(&ceiling.Burst, "burst", 0, "how many may go at once after a time with fewer; default a tenth of --per-second, at least 1")
	return c
}

func (x *tasks) heldCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "held",
		Short: "List destinations that are paused or have a ceiling",
		Long: `held lists the destinations whose tasks are held back: paused, since when and by whom,
or with a ceiling, and how many tasks are due and wait for that, at most 100000.
With --json one object a line.`,
		Example: `  rabbitdelay tasks held --json | jq -r 'select(.paused_at) | .queue'`,
		Args:    program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				list, err := s.Destinations(ctx, schedule.NoTx)
				if err != nil {
					return err
				}
				n, err := term.List(x.Terminal, []string{"DESTINATION", "WAITING", "STATE"}, term.Each(list), func(d schedule.DestinationState) (any, []string) {
					return asjson.HeldOf(d), []string{shown.Line(d.Name()), strconv.FormatInt(d.Waiting, 10), shown.Line(d.String())}
				})
				if err == nil && n == 0 {
					x.Notef("no destination is held back")
				}
				return err
			})
		},
	}
}
