package tasks

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// filterFlags contains the flags that select tasks.
type filterFlags struct {
	chosen   schedule.Filter
	header   string
	from, to moment
}

var filterNames = []string{"queue", "exchange", "status", "due-from", "due-to", "id-prefix", "tag", "unique-key", "header", "error", "error-like"}

func (x *filterFlags) register(c *cobra.Command) {
	f, chosen := c.Flags(), &x.chosen
	f.StringVar(&chosen.Queue, "queue", "", "only tasks for this queue")
	f.StringVar(&chosen.Exchange, "exchange", "", "only tasks for this exchange")
	f.StringVar(&chosen.Tag, "tag", "", "only tasks with this tag")
	f.StringVar(&chosen.UniqueKey, "unique-key", "", "only tasks with this unique key")
	f.StringVar(&x.header, "header", "", "only tasks with the header `name=value`")
	f.StringVar(&chosen.Error, "error", "", "only tasks whose last error contains this text")
	f.StringVar(&chosen.ErrorLike, "error-like", "", `only tasks whose last error matches this text, apart from numbers, ids and quoted parts; "tasks errors" prints such texts`)
	program.Choice(c, (*string)(&chosen.Status), "status", "", "only tasks with this status", string(schedule.StatusPending), string(schedule.StatusRunning), string(schedule.StatusDone),
		string(schedule.StatusCancelled), string(schedule.StatusExpired), string(schedule.StatusFailed))
	f.Var(&x.from, "due-from", "only tasks due at or after this time; a duration such as 2h or -7d is relative to now")
	f.Var(&x.to, "due-to", "only tasks due before this time; a duration such as 2h or -7d is relative to now")
	f.StringVar(&chosen.IDPrefix, "id-prefix", "", "only tasks whose id has this prefix")
}

func (x *filterFlags) filter() (f schedule.Filter, err error) {
	f = x.chosen
	f.DueFrom, f.DueTo = x.from.at, x.to.at
	if x.header != "" {
		if f.Header, f.HeaderValue, err = app.ParseHeader(x.header); err != nil {
			return f, err
		}
	}
	if !f.DueFrom.IsZero() && !f.DueTo.IsZero() && !f.DueFrom.Before(f.DueTo) {
		return f, fmt.Errorf("--due-to: %s; expected a time after --due-from, which is %s", shown.Instant(f.DueTo), shown.Instant(f.DueFrom))
	}
	return f, nil
}

// moment is a time flag in the syntax of schedule.ParseInstant. It keeps the original text.
type moment struct {
	at   time.Time
	text string
}

func (m *moment) String() string { return m.text }

func (*moment) Type() string { return "time" }

func (m *moment) Set(s string) error {
	at, err := schedule.ParseInstant(s, time.Now())
	*m = moment{at, s}
	return err
}

// shift is a duration flag with an optional sign.
type shift time.Duration

func (s *shift) String() string {
	d := app.Duration(time.Duration(*s).Abs())
	if *s < 0 {
		return "-" + d.String()
	}
	return d.String()
}

func (*shift) Type() string { return "duration" }

func (s *shift) Set(text string) error {
	d, err := signed(text)
	if err != nil || d == 0 {
		return fmt.Errorf("expected a duration other than 0 such as 2h or -1d, got %q", text)
	}
	*s = shift(d)
	return nil
}

func signed(text string) (time.Duration, error) {
	digits := strings.TrimLeft(text, "+-")
	var d app.Duration
	if err := d.Set(digits); err != nil {
		return 0, err
	}
	switch text[:len(text)-len(digits)] {
	case "", "+":
		return time.Duration(d), nil
	case "-":
		return -time.Duration(d), nil
	}
	return 0, fmt.Errorf("more than one sign in %q", text)
}

// when contains the flags --delay and --at.
type when struct {
	delay app.Duration
	at    moment
}

func (w *when) registerDue(c *cobra.Command, fallback string) {
	c.Flags().Var(&w.delay, "delay", "due this long from now, such as 1500ms, 30m or 7d"+fallback)
	c.Flags().Var(&w.at, "at", `due time instead of --delay, such as 2026-01-31T08:00:00Z, "tomorrow 08:00 Europe/Berlin" or now`)
}

func (w *when) instant(a *app.App) (time.Time, error) {
	if err := a.Exclusive("delay", "at"); err != nil {
		return time.Time{}, err
	}
	if w.delay < 0 {
		return time.Time{}, fmt.Errorf("--delay: %s; expected 0 or more", w.delay.String())
	}
	if !w.at.at.IsZero() {
		return w.at.at, nil
	}
	return time.Now().Add(time.Duration(w.delay)), nil
}
