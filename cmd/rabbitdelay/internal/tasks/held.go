package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// held is one run of a command that pauses, resumes or limits a destination.
type held struct {
	*tasks
	app.Actor

	to topology.Destination
}

func (h *held) register(c *cobra.Command) {
	c.Flags().StringVar(&h.to.Queue, "queue", "", "the queue, instead of an argument")
	c.Flags().StringVar(&h.to.Exchange, "exchange", "", "the exchange, with all its routing keys")
	h.RegisterActor(c.Flags())
}

// apply calls do for the destination and prints its new state. The queue may be given as an argument.
func (h *held) apply(ctx context.Context, args []string, do func(context.Context, change.Operator) error) error {
	if len(args) > 0 {
		if h.to.Queue != "" {
			return fmt.Errorf("expected only one queue, got both %q and --queue", args[0])
		}
		h.to.Queue = args[0]
	}
	if (h.to.Queue == "") == (h.to.Exchange == "") {
		return errors.New("expected one destination; give either a queue or --exchange")
	}
	cfg, err := h.Load(nil)
	if err != nil {
		return err
	}
	return h.WithStoreOf(ctx, cfg, func(ctx context.Context, s *app.Store) error {
		before, err := h.state(ctx, s)
		if err != nil {
			return err
		}
		if err := do(ctx, h.Operator(s)); err != nil {
			return err
		}
		state, err := h.state(ctx, s)
		if err != nil {
			return err
		}
		note := ""
		if state.String() != "" || before.String() == "" {
			if note, err = h.unknown(ctx, s, cfg); err != nil {
				return err
			}
		}
		sent := "its tasks are sent"
		if note != "" {
			sent = "not paused and not limited"
		}
		if err := h.Show(asjson.HeldOf(state), "%s: %s\n", shown.Line(cmp.Or(state.Queue, state.Exchange)), shown.Line(cmp.Or(state.String(), sent))); err != nil {
			return err
		}
		if note != "" {
			h.Notef("%s", note)
		}
		if !state.Paused() {
			return nil
		}
		relays, err := s.Relays(ctx)
		if err != nil {
			return err
		}
		skew, _, err := s.ClockSkew(ctx)
		if err != nil {
			return err
		}
		now := time.Now().Add(skew)                      // relays record the database's time
		if len(relays) == 0 || !relays[0].Running(now) { // relays are sorted by when they were last seen, newest first
			h.Notef("%s, so tasks that are already on the broker are not recalled, and run when they are due, until a relay starts", status.WhoSends(append([]taskview.Relay{}, relays...), now))
		}
		return nil
	})
}

// state returns the state of the destination. If the destination is neither paused nor limited, the state contains only
// its name.
func (h *held) state(ctx context.Context, s *app.Store) (schedule.DestinationState, error) {
	list, err := s.Destinations(ctx, schedule.NoTx)
	for _, x := range list {
		if x.Destination() == h.to {
			return x, nil
		}
	}
	return schedule.DestinationState{Queue: h.to.Queue, Exchange: h.to.Exchange}, err
}

// unknown returns a note if neither the file nor a task nor a recurring task has the destination, because its name may
// be misspelt.
func (h *held) unknown(ctx context.Context, s *app.Store, cfg *config.Config) (string, error) {
	var names []string
	for _, d := range cfg.Topology.Destinations {
		if d.Queue == h.to.Queue && d.Exchange == h.to.Exchange {
			return "", nil
		}
		names = append(names, cmp.Or(d.Queue, d.Exchange))
	}
	known, err := s.Known(ctx, h.to)
	if err != nil || known {
		return "", err
	}
	named, err := s.Named(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range named {
		names = append(names, cmp.Or(d.Queue, d.Exchange))
	}
	name := cmp.Or(h.to.Queue, h.to.Exchange)
	return fmt.Sprintf("no task, recurring task or destination in the file has the name %s%s", shown.Line(name), naming.DidYouMean(name, names)), nil
}

func (x *tasks) pauseCommand() *cobra.Command {
	h := held{tasks: x}
	c := &cobra.Command{
		Use:   "pause {QUEUE | --exchange EXCHANGE}",
		Short: "Pause a destination, and keep its tasks in the table",
		Long: `Keep a destination's tasks in the table until "tasks resume" is run. The
destination's consumers are not stopped.`,
		Example: `  rabbitdelay tasks pause mail
  rabbitdelay tasks pause --exchange events`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			return h.apply(c.Context(), args, func(ctx context.Context, o change.Operator) error { return o.Pause(ctx, h.to) })
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
		Short: "End the pause of a destination",
		Long: `End a pause. Tasks that came due during the pause are sent immediately, or at an
even rate over a period with --spread.`,
		Example: `  rabbitdelay tasks resume mail
  rabbitdelay tasks resume mail --spread 30m`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			return h.apply(c.Context(), args, func(ctx context.Context, o change.Operator) error {
				return o.Resume(ctx, h.to, time.Duration(spread))
			})
		},
	}
	h.register(c)
	c.Flags().Var(&spread, "spread", "spread the tasks that came due during the pause over this duration, up to 30d")
	return c
}

func (x *tasks) rateLimitCommand() *cobra.Command {
	h := held{tasks: x}
	var rateLimit schedule.RateLimit
	c := &cobra.Command{
		Use:   "rate-limit {QUEUE | --exchange EXCHANGE} --per-second N",
		Short: "Limit the task rate of a destination",
		Long: `Limit how many tasks a second are sent to a destination, by all relays of the
database together. Tasks above the limit wait in the table.`,
		Example: `  rabbitdelay tasks rate-limit mail --per-second 50
  rabbitdelay tasks rate-limit mail --per-second 0`,
		Args: program.AtMostOneArg,

		DisableFlagsInUseLine: true, // the line would be longer than a terminal is wide

		RunE: func(c *cobra.Command, args []string) error {
			if !x.Given("per-second") {
				return errors.New("no rate was given; give --per-second (0 removes the rate limit)")
			}
			return h.apply(c.Context(), args, func(ctx context.Context, o change.Operator) error {
				rateLimit.Queue, rateLimit.Exchange = h.to.Queue, h.to.Exchange
				return o.SetRateLimit(ctx, rateLimit)
			})
		},
	}
	h.register(c)
	c.Flags().Float64Var(&rateLimit.PerSecond, "per-second", 0, "tasks a second, such as 50 or 0.1; 0 for no rate limit")
	c.Flags().IntVar(&rateLimit.Burst, "burst", 0, "how many tasks may be sent together after an idle period; default: a tenth of --per-second, at least 1")
	return c
}

func (x *tasks) heldCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "held",
		Short: "List paused and rate-limited destinations",
		Long: `List the destinations that are paused or have a rate limit, and how many due
tasks wait for that reason.`,
		Example: `  rabbitdelay tasks held --json | jq -r 'select(.paused_at) | .queue'`,
		Args:    program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				list, err := s.Destinations(ctx, schedule.NoTx)
				if err != nil {
					return err
				}
				n, err := term.List(x.Terminal, []string{"DESTINATION", "WAITING", "STATE"}, term.Each(list), func(d schedule.DestinationState) (any, []string) {
					return asjson.HeldOf(d), []string{shown.Line(cmp.Or(d.Queue, d.Exchange)), strconv.FormatInt(d.Waiting, 10), shown.Line(d.String())}
				})
				if err == nil && n == 0 {
					x.Notef("no destination is paused or has a rate limit")
				}
				return err
			})
		},
	}
}
