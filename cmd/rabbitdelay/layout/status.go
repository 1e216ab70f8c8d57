package layout

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// defaultStatusPeek is how many dead letters of each queue status looks at.
const defaultStatusPeek = 20

// statusStandstill is the longest TTL of delay queues of which one look finds out whether they
// keep messages; --watch finds out of all in time.
const statusStandstill = time.Second

// defaultWatch is how often status --watch looks; the management API's counts are
// up to 5 s old.
const defaultWatch = 5 * time.Second

// statusRun is one run of status.
type statusRun struct {
	*app.App

	peek     int
	watch    bool
	interval app.Duration
	amqpOnly bool
}

// StatusCommand returns the command status.
func StatusCommand(a *app.App) *cobra.Command {
	r := &statusRun{App: a, interval: app.Duration(defaultWatch)}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, where, and until when",
		Long: `status shows how many messages wait in each layout and delay, ready and on their
way, what is due soon, dead letters and parked messages by destination with their
reasons, destinations without consumers, earlier layouts and whether they have
drained, and what doctor found. With a database, given by the settings or --db, it
shows tasks by queue and status, the oldest one that is overdue, and recurring tasks
that cannot be planned.

Of delay queues with a TTL of up to a second it finds out whether they keep messages for
longer, of others with --watch, after about twice their TTL.

It reads the management API if that answers, else what AMQP shows, and lists what it
could not see. It changes nothing. For the reasons it looks at the first messages
of dead-letter queues, as "rabbitdelay peek" does, and puts them back.

Exit code: 0 shown; 1 neither the broker nor the database could be looked at, or an
error; 2 shown, but not everything could be seen.`,
		Example: `  rabbitdelay status -f delays.yaml
  rabbitdelay status -f delays.yaml --watch
  rabbitdelay status -f delays.yaml --json | jq '.destinations[] | select(.consumers == 0)'`,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case r.peek < 0 || r.peek > inspect.MaxPeek:
				return fmt.Errorf("--peek: %d; expected 0 to %d", r.peek, inspect.MaxPeek)
			case time.Duration(r.interval) < time.Second:
				return fmt.Errorf("--interval: %s; expected 1s or more", r.interval.String())
			case a.Given("interval") && !r.watch:
				return fmt.Errorf("--interval is that of --watch; give both")
			}
			return r.run(c.Context())
		},
	}
	f := c.Flags()
	app.DatabaseFlag(f, "; without it no tasks are shown")
	f.IntVar(&r.peek, "peek", defaultStatusPeek, "how many messages of each dead-letter queue to look at for their reasons, 0 for none")
	f.BoolVarP(&r.watch, "watch", "w", false, "look again and again, until Ctrl-C")
	f.Var(&r.interval, "interval", "with --watch: the pause between two looks")
	f.BoolVar(&r.amqpOnly, "amqp-only", false, "look over AMQP alone")
	return c
}

func (r *statusRun) run(ctx context.Context) error {
	c, err := r.Load(nil)
	if err != nil {
		return err
	}
	src := status.Source{Peek: r.peek}
	src.Broker.Watch = statusStandstill
	if c.Database.URL != "" {
		s, err := r.OpenStore(c)
		if err != nil {
			return err
		}
		defer s.Close()
		src.Tasks = s.Store
	}
	if !r.watch {
		s, err := r.look(ctx, c, src)
		if err != nil {
			return err
		}
		if err := r.print(s); err != nil || s.Complete() {
			return err
		}
		return program.Exit(app.ExitUnseen)
	}
	return r.repeat(ctx, c, src)
}

// look takes one status.
func (r *statusRun) look(ctx context.Context, c *config.Config, src status.Source) (status.Status, error) {
	if src.Before == nil {
		defer r.Waiting("looking at the broker")()
	}
	if err := r.Examined(ctx, c, &src.Want, &src.Broker, "rabbitdelay status"); err != nil {
		return status.Status{}, err
	}
	if r.amqpOnly {
		src.Broker.Management = nil
	}
	return status.Take(ctx, src)
}

// clearScreen moves to the top of a terminal and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// repeat looks until Ctrl-C. What cannot be looked at now may be back at the next
// look.
func (r *statusRun) repeat(ctx context.Context, c *config.Config, src status.Source) error {
	tick := time.NewTicker(time.Duration(r.interval))
	defer tick.Stop()
	for n := 0; ; n++ {
		s, err := r.look(ctx, c, src)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			src.Before = &s
		}
		if err := r.draw(s, err, n); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// draw shows the nth look, on a terminal in place of the one before.
func (r *statusRun) draw(s status.Status, failed error, n int) error {
	if r.JSON || !term.Is(r.Stdout) {
		if failed != nil {
			r.PrintError(failed)
			return nil
		}
		if n > 0 && !r.JSON {
			r.Printf("\n")
		}
		return r.print(s)
	}
	if failed != nil {
		r.Printf("%s", clearScreen)
		r.PrintError(failed)
		return nil
	}
	var page strings.Builder
	if err := r.printPage(&page, s); err != nil {
		return err
	}
	text := page.String()
	if columns, rows := term.Size(r.Stdout); rows > 0 {
		text = onScreen(text, columns, rows)
	}
	r.Printf("%s%s", clearScreen, text)
	return nil
}
