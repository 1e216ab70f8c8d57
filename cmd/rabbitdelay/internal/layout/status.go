package layout

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	defaultStatusPeek = 20 // the number of dead letters that status peeks at in each queue
	// statusStandstill is the longest TTL of delay queues for which a single inspection finds out whether they keep
	// messages for too long. With --watch, this works for all delay queues after some time.
	statusStandstill = time.Second
	defaultWatch     = 5 * time.Second // the management API collects counts every 5 s; a count is up to 10 s old
)

type statusRun struct {
	*app.App

	peek     int
	watch    bool
	interval app.Duration
	amqpOnly bool
}

// StatusCommand returns the status command, which shows how many messages and tasks are waiting, and where.
func StatusCommand(a *app.App) *cobra.Command {
	r := &statusRun{App: a, interval: app.Duration(defaultWatch)}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how many messages are waiting, and where",
		Long: `Show how many messages wait in each layout and delay, what is due soon, dead
letters, and problems. With a database, it also shows tasks.`,
		Example: `  rabbitdelay status -f delays.yaml
  rabbitdelay status -f delays.yaml --watch
  rabbitdelay status --json | jq '.destinations[] | select(.consumers == 0)'`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	app.DatabaseFlag(f, "; without a database, no tasks are shown")
	f.IntVar(&r.peek, "peek", defaultStatusPeek, "read up to this many messages of each dead-letter queue to show why they died, 0 for none")
	f.BoolVarP(&r.watch, "watch", "w", false, "repeat until Ctrl-C")
	f.Var(&r.interval, "interval", "with --watch, the pause between two refreshes")
	f.BoolVar(&r.amqpOnly, "amqp-only", false, "do not use the management API")
	return c
}

func (r *statusRun) run(ctx context.Context) error {
	switch {
	case r.peek < 0 || r.peek > inspect.MaxPeek:
		return fmt.Errorf("--peek: %d; expected 0 to %d", r.peek, inspect.MaxPeek)
	case time.Duration(r.interval) < time.Second:
		return fmt.Errorf("--interval: %s; expected 1s or more", r.interval.String())
	case r.Given("interval") && !r.watch:
		return fmt.Errorf("--interval only works with --watch; add --watch, or omit --interval")
	}
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

func (r *statusRun) look(ctx context.Context, c *config.Config, src status.Source) (status.Status, error) {
	if src.Before == nil {
		defer r.Waiting("inspecting the broker")()
	}
	if err := r.Examined(ctx, c, &src.Want, &src.Broker, "rabbitdelay status"); err != nil {
		return status.Status{}, err
	}
	if r.amqpOnly {
		src.Broker.Management = nil
	}
	return status.Take(ctx, src)
}

const clearScreen = "\x1b[H\x1b[2J"

// repeat shows the status until Ctrl-C. It continues after an error, because the next inspection may succeed.
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

// draw shows the status for the nth time. On a terminal it replaces the previous one.
func (r *statusRun) draw(s status.Status, failed error, n int) error {
	screen := !r.JSON && term.Is(r.Stdout)
	switch {
	case failed != nil:
		if screen {
			r.Printf("%s", clearScreen)
		}
		r.PrintError(failed)
		return nil
	case !screen:
		if n > 0 && !r.JSON {
			r.Printf("\n")
		}
		return r.print(s)
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

func (r *statusRun) print(s status.Status) error {
	if r.JSON {
		return r.PrintJSON(s)
	}
	return r.printPage(r.Stdout, s)
}

func (r *statusRun) printPage(w io.Writer, s status.Status) error {
	p := &statusPage{Status: s, Table: term.NewTable(w), quiet: r.Quiet}
	p.all()
	return p.Flush()
}

// onScreen shortens a text to the size of a terminal. A longer text would scroll its beginning out of sight.
func onScreen(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if more := len(lines) - (height - 1); more > 0 {
		lines = append(lines[:max(height-2, 0)], fmt.Sprintf("... %d more lines; a taller window shows them", more+1))
	}
	for i, l := range lines {
		lines[i] = shown.Shorten(l, width)
	}
	return strings.Join(lines, "\n") + "\n"
}

type statusPage struct {
	status.Status
	*term.Table

	quiet bool
}

// heading starts a new table with its own column widths.
func (p *statusPage) heading(cells ...string) {
	p.Linef("")
	p.Row(cells...)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// known formats a number, and indicates whether the actual number is unknown or may be larger.
func known(n int64, unknown bool) string { return shown.Known(n, unknown, number) }

// orNot formats n, which is nil if the number is unknown.
func orNot(n *int64) string {
	if n == nil {
		return known(0, true)
	}
	return number(*n)
}

func (p *statusPage) all() {
	if b := p.Broker; b != nil {
		p.Linef("RabbitMQ %s, virtual host %q at %s, read by %s", b.Version, b.Vhost, shown.Instant(p.At), b.Source)
		p.layouts()
		p.dueSoon()
		p.destinations()
		for _, d := range p.Destinations {
			if d.Dead != nil && (d.Dead.Messages > 0 || d.Dead.Unknown) {
				p.deadLetters("DEAD LETTERS", *d.Dead)
			}
		}
		if p.Parked.Messages > 0 || p.Parked.Unknown {
			p.deadLetters("PARKED", p.Parked)
		}
	} else {
		p.Linef("the broker could not be inspected at %s", shown.Instant(p.At))
		p.dueSoon()
	}
	p.tasks()
	p.relays()
	p.clients()
	p.findings()
	if len(p.Unchecked) > 0 {
		p.Linef("\nNOT CHECKED")
		for _, u := range p.Unchecked {
			p.Linef("%s: %s", u.Area, shown.Line(u.Why))
		}
	}
	if len(p.Notes) > 0 && !p.quiet {
		p.Linef("\nNOTES")
		for _, n := range p.Notes {
			p.Linef("- %s", strings.ReplaceAll(n, "\n", "\n  "))
		}
	}
}

func (p *statusPage) layouts() {
	switch {
	case len(p.Layouts) > 0:
	case p.Broker.Managed():
		p.Linef("\nno layouts")
		return
	default:
		p.Linef("\nno delay queues of the settings exist; whether there are others is unknown")
		return
	}
	p.heading("LAYOUT", "DELAY", "READY", "IN TRANSIT", "")
	for _, l := range p.Layouts {
		state := ""
		switch {
		case l.Earlier && l.Drained():
			state = "earlier, drained"
		case l.Earlier && l.Waiting.Total() > 0:
			state = "earlier, not drained"
		case l.Earlier:
			state = "earlier, may not be drained"
		case l.Drained():
			state = "nothing waiting"
		}
		p.Row(shown.Line(l.Name), "all", known(l.Waiting.Ready, l.Waiting.Unknown), orNot(l.Waiting.InTransit()), state)
		for _, d := range l.Delays {
			p.Row("", topology.FormatDuration(time.Duration(d.TTL)), number(d.Waiting.Ready), orNot(d.Waiting.InTransit()))
		}
	}
}

func (p *statusPage) dueSoon() {
	p.heading("DUE WITHIN", "ON THE BROKER", "TASKS")
	for _, d := range p.DueSoon {
		broker, tasks := "unknown", ""
		if d.OnBroker != nil {
			broker = "at least " + number(*d.OnBroker)
		}
		if d.Tasks != nil {
			tasks = number(*d.Tasks)
		}
		p.Row(topology.FormatDuration(time.Duration(d.Within)), broker, tasks)
	}
}

func (p *statusPage) destinations() {
	if len(p.Destinations) == 0 {
		return
	}
	p.heading("DESTINATION", "READY", "UNACKED", "CONSUMERS", "DEAD LETTERS")
	for _, d := range p.Destinations {
		consumers, dead := orNot(d.Consumers), ""
		switch {
		case !d.Exists:
			consumers = "does not exist"
		case d.Exchange:
			consumers = "exchange"
		case d.Unconsumed():
			consumers = "none"
		}
		if d.Dead != nil {
			dead = known(d.Dead.Messages, d.Dead.Unknown)
		}
		p.Row(shown.Line(d.Name), known(d.Waiting.Ready, d.Waiting.Unknown), orNot(d.Waiting.InTransit()), consumers, dead)
	}
}

func (p *statusPage) deadLetters(what string, l status.DeadLetters) {
	text := fmt.Sprintf("%s in %s: %s", what, shown.Line(l.Queue), known(l.Messages, l.Unknown))
	if l.Oldest != nil {
		text += ", the oldest since " + term.When(*l.Oldest, p.At)
	}
	switch {
	case l.Sampled == 0:
		text += "; not inspected"
	case int64(l.Sampled) < l.Messages:
		text += fmt.Sprintf("; of the first %d:", l.Sampled)
	}
	p.Linef("\n%s", text)
	if l.Sampled == 0 {
		return
	}
	p.Row("  DESTINATION", "REASON", "MESSAGES", "LAST ERROR")
	for _, g := range l.Groups {
		p.Row("  "+orUnknown(g.Destination), orUnknown(g.Reason), strconv.Itoa(g.Messages), term.ShortError(g.Error))
	}
}

func orUnknown(s string) string { return shown.Line(cmp.Or(s, "unknown")) }

func (p *statusPage) tasks() {
	t := p.Tasks
	if t == nil {
		return
	}
	p.heading("TASKS FOR", "STATUS", "COUNT")
	for _, c := range t.Counts {
		p.Row(shown.Line(cmp.Or(c.Queue, "(exchanges)")), string(c.Status), number(c.Count))
	}
	if len(t.Counts) == 0 {
		p.Linef("none")
	}
	if d := time.Duration(t.Skew).Round(time.Second); d != 0 {
		where := "ahead of"
		if d < 0 {
			where = "behind"
		}
		p.Linef("the database's clock, by which tasks are due and relays run, is %s %s this machine's", d.Abs(), where)
	}
	for _, h := range t.Held {
		p.Linef("tasks for %s: %s; due tasks waiting: %d", shown.Line(cmp.Or(h.Queue, h.Exchange)), shown.Line(h.String()), h.Waiting)
	}
	for _, r := range t.Idle {
		p.Linef("the recurring task %q creates no tasks: %s", shown.Line(r.Name), shown.Line(r.Reason))
	}
	for _, u := range t.Unlisted {
		p.Linef("pending tasks for %s, which is not listed in the file: %d; relays refuse to send them", shown.Line(u.Destination), u.Pending)
	}
	p.sent()
	o := t.Overdue
	if o == nil {
		p.Linef("no task is overdue")
		return
	}
	place, lastError := "not yet sent to the broker", ""
	if o.Sent {
		place = "sent to the broker, but not done"
	}
	if o.LastError != "" {
		lastError = ", last error: " + term.ShortError(o.LastError)
	}
	p.Linef("the oldest overdue task is %s for %s, due %s: %s, failed attempts: %d%s", shown.Line(o.ID), shown.Line(o.Destination),
		term.When(o.Due, t.Clock(p.At)), place, o.Attempts, lastError)
	if t.Unsent+t.Unhandled > 0 {
		atLeast := ""
		if t.More {
			atLeast = "at least "
		}
		p.Linef("overdue in total: %s%d not sent, %d sent but not handled", atLeast, t.Unsent, t.Unhandled)
	}
}

// sent prints how many of the sent tasks have lost their messages. It prints nothing if no sent task waits for its due
// time, or if none of them has lost its message.
func (p *statusPage) sent() {
	s := p.Tasks.Sent
	if s == nil || s.Missing != nil && *s.Missing == 0 {
		return
	}
	number, again := shown.Count(s.Tasks, "task", "tasks"), shown.Instant(s.ResendFrom)
	if s.More {
		number = "at least " + number
	}
	if s.ResendTo != s.ResendFrom {
		again += " to " + shown.Instant(s.ResendTo)
	}
	missing := "unknown"
	if s.Missing != nil {
		missing = "at least " + shown.Number(*s.Missing)
	}
	p.Linef("sent but not yet due: %s; of these, without a message on the broker: %s; lost messages are sent again %s", number, missing, again)
}

func (p *statusPage) relays() {
	if p.Tasks == nil || p.Tasks.Relays == nil {
		return
	}
	if len(p.Tasks.Relays) > 0 {
		p.heading("RELAY", "VERSION", "STARTED", "LAST SEEN")
	}
	running, now := 0, p.Tasks.Clock(p.At)
	for _, r := range p.Tasks.Relays {
		seen := shown.FromNow(r.Seen, now)
		if silent := r.Silent(now); silent == "" {
			running++
		} else {
			seen += ": " + shown.Line(silent)
		}
		p.Row(shown.Line(r.Name), shown.Line(cmp.Or(r.Version, "unknown")), shown.Instant(r.Started), seen)
	}
	if running == 0 || p.Tasks.Unsent > 0 {
		p.Linef("%s", shown.Line(status.WhoSends(p.Tasks.Relays, now)))
	}
}

func (p *statusPage) clients() {
	if p.Clients == nil {
		return
	}
	p.heading("CLIENT", "CONNECTIONS", "BLOCKED")
	for _, c := range p.Clients {
		p.Row(shown.Line(c.Name), strconv.Itoa(c.Connections), strconv.Itoa(c.Blocked))
	}
	if len(p.Clients) == 0 {
		p.Linef("no client is connected")
	}
}

func (p *statusPage) findings() {
	if p.Broker == nil {
		return
	}
	if len(p.Findings) == 0 {
		p.Linef("\ndoctor found no problems")
		return
	}
	p.Linef("\nDOCTOR FOUND (rabbitdelay doctor shows how to fix it)")
	for _, f := range p.Findings {
		p.Row(fmt.Sprintf("%s %s: %s", f.Severity, f.ID, shown.Line(f.What)))
	}
	_ = p.Flush() // the next Flush returns the error
}
