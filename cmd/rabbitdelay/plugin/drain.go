package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/drain"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
)

type drainRun struct {
	app.Consent

	o       drain.Config
	command string
	margin  app.Duration

	cfg    *config.Config
	conn   *amqp.Connection
	rows   int64 // the number of rows in the plugin's table
	report drain.Report
}

func drainCommand(a *app.App) *cobra.Command {
	r := &drainRun{Consent: app.Consent{App: a}, margin: app.Duration(drain.DefaultMargin)}
	c := &cobra.Command{
		Use:   "drain",
		Short: "Move what waits in the plugin into delay queues",
		Long: `drain takes the messages of the virtual host out of the plugin's table and sends each
through the configured strategy with the delay that remains: to the same exchange
with the same routing key, under its id, with its properties, headers and body,
persistent. When the broker has confirmed a message, drain notes it in the file of
--state, and deletes exactly the rows that it noted. The exchange stays, and gets
the messages when they are due.

The table is read and changed by "rabbitmqctl eval" on the node that has it. Run
drain where that command works, or give one that reaches it with --rabbitmqctl; in a
cluster run it for each node. The plugin goes on working meanwhile: it delivers what
is due within --margin, and takes new messages, which the next run finds. Stop the
producers before the last run.

A message stays in the plugin, and drain says why, when it cannot be carried
unchanged: with an expiration, which would count while it waits; with several routing
keys (CC, BCC); with a user-id that is not this connection's; with x-death or another
header by which the broker routes; with a priority above 4, from RabbitMQ 4.0 on
and with quorum delay queues. --leave-out sends it without what it names. --dry-run
asks the broker, by the rights of this user, for exchanges and queues, and changes
nothing; whether the user may publish to an exchange, only publishing tells.

With --other-broker the messages leave the node that --rabbitmqctl reaches and wait on
the broker of --url instead, in the virtual host of the same name, such as on a
RabbitMQ 4.3 to which producers and consumers move.

Interrupted or killed, it loses nothing: give the same command again. It first deletes
what it had sent. What was confirmed and not noted, at most some hundred messages,
comes twice, under one id; a message without an id gets one, the same in each run.
Do not leave it interrupted: what was sent and not deleted is delivered by the plugin
as well, at most 2,000 messages.

Each routing key of an exchange gets a queue of its own (broker.max_route_queues,
100): raise the limit where there are more.

Exit code: 0 all went, or with --dry-run would go; 2 some stayed; 1 error.`,
		Example: `  rabbitdelay plugin drain --rabbitmqctl "docker exec -i rabbit rabbitmqctl" --dry-run
  rabbitdelay plugin drain --rabbitmqctl "ssh rabbit-1 sudo rabbitmqctl" --exchange orders
  rabbitdelay plugin drain --leave-out expiration --yes`,
		RunE: func(c *cobra.Command, _ []string) error { return r.drain(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.command, "rabbitmqctl", "rabbitmqctl", "the `command` that runs rabbitmqctl on the node, as for a shell")
	f.StringVar(&r.o.State, "state", "rabbitdelay-plugin-drain.state", "the `file` that says what was sent, for the next run")
	f.StringSliceVar(&r.o.Exchanges, "exchange", nil, "only the messages of this exchange, or of several")
	f.Var(&r.margin, "margin", "leave to the plugin what is due sooner than this, 10s or more")
	f.StringSliceVar(&r.o.LeaveOut, "leave-out", nil, "send messages without this: expiration, user-id, priority (above 4), or a header such as x-death")
	r.Register(f, "say what would become of the messages, and leave them")
	r.RegisterAudit(f)
	f.BoolVar(&r.o.OtherBroker, "other-broker", false, "--rabbitmqctl reaches another broker than --url, to which the messages move")
	return c
}

func (r *drainRun) drain(ctx context.Context) (err error) {
	if r.margin < app.Duration(10*time.Second) {
		return fmt.Errorf("--margin: %s; expected 10s or more", r.margin.String())
	}
	if err := r.Possible(); err != nil {
		return err
	}
	if r.cfg, err = r.Load(nil); err != nil {
		return err
	}
	if s := r.cfg.Delay.Strategy; s == config.StrategyPlugin || s == config.StrategyAuto {
		return fmt.Errorf("delay.strategy: %s, which may send into the plugin; give --strategy bucket or ttl", s)
	}
	if r.conn, err = r.cfg.Dial(ctx); err != nil {
		return err
	}
	defer app.Close(r.conn)
	if err := drain.Lock(ctx, r.conn, r.cfg.Delay.Prefix); err != nil {
		return err
	}
	r.o.Margin, r.o.Prefix, r.o.Shell = time.Duration(r.margin), r.cfg.Delay.Prefix, evalBy(r.command)
	r.o.Vhost, r.o.User = r.conn.Config.Vhost, userOf(r.conn)
	end, err := r.OpenAudit(r.cfg)
	if err != nil {
		return err
	}
	defer end()
	return r.Run(ctx, r)
}

func (r *drainRun) Entry() console.AuditEntry {
	return console.AuditEntry{Action: "plugin.drain", Target: r.o.Vhost, Detail: strings.Join(r.o.Exchanges, ", ")}
}

func (r *drainRun) Outcome() string {
	stayed := r.report.Soon
	for _, x := range r.report.Refused {
		stayed += x.Count
	}
	return fmt.Sprintf("%s moved, %s stayed", shown.Count(r.report.Sent, "message", "messages"), shown.Number(stayed))
}

func (r *drainRun) Count(ctx context.Context) (app.Question, error) {
	done := r.Waiting("looking at the plugin's table")
	head, err := drain.Look(ctx, r.o)
	done()
	r.rows = head.Rows
	switch {
	case errors.Is(err, drain.ErrOtherBroker):
		err = fmt.Errorf("%w: --rabbitmqctl has to reach the broker of --url; give --other-broker if its messages are to move from there to --url", err)
	case errors.Is(err, drain.ErrSameBroker):
		err = fmt.Errorf("%w: leave --other-broker out if it is the same, else let the other drain end", err)
	}
	if err != nil || r.rows == 0 {
		return app.Question{}, err
	}
	return app.Question{
		Text: fmt.Sprintf("Move up to %s of virtual host %s out of the plugin's table on %s? Type their number, %d, to confirm: ",
			shown.Count(r.rows, "message", "messages"), shown.Line(r.o.Vhost), shown.Line(string(head.Node)), r.rows),
		Answer: strconv.FormatInt(r.rows, 10), Declined: "no message was moved",
	}, nil
}

// Do moves the messages, or with --dry-run finds out which messages would move.
func (r *drainRun) Do(ctx context.Context) error {
	s, err := r.cfg.Strategy(ctx, r.Logger())
	if err != nil {
		return err
	}
	if r.DryRun {
		cfg, err := r.cfg.Client(s, r.Logger())
		if err != nil {
			return err
		}
		if r.o.DryRun, err = inspect.Rehearse(r.conn, cfg); err != nil {
			return err
		}
	} else {
		if r.o.Client, err = r.Open(ctx, r.cfg, s); err != nil {
			return err
		}
		defer func() { _ = r.o.Client.Close(context.WithoutCancel(ctx)) }() // the client is idle
	}
	bar := r.Progress(int(r.rows), "moving")
	defer bar.Clear()
	r.o.Progress = func(p drain.Report) { bar.Set(int(min(p.Found, r.rows)), shown.Number(p.Sent)+" sent") }
	r.report, err = drain.Run(ctx, r.o)
	return err
}

func (r *drainRun) Tell(took time.Duration, failed error) error {
	if r.report.Node == "" {
		return failed // nothing was read
	}
	if err := r.print(took); err != nil {
		return errors.Join(failed, err)
	}
	switch {
	case failed != nil && !r.DryRun:
		return fmt.Errorf("%w; nothing is lost: give the command again, with the same --state, to go on", failed)
	case failed == nil && len(r.report.Refused) > 0:
		return program.Exit(app.ExitToDo)
	}
	return failed
}

func userOf(conn *amqp.Connection) string {
	for _, s := range conn.Config.SASL {
		switch s := s.(type) {
		case *amqp.PlainAuth:
			return s.Username
		case *amqp.AMQPlainAuth:
			return s.Username
		}
	}
	return ""
}

type drained struct {
	DryRun bool `json:"dry_run,omitempty"`
	drain.Report
	Seconds float64 `json:"seconds"`
}

func (r *drainRun) print(took time.Duration) error {
	a, rep := r.App, r.report
	if a.JSON {
		return a.PrintJSON(drained{r.DryRun, rep, app.Seconds(took)})
	}
	dry, sent := "", "sent, confirmed, and deleted from the plugin's table"
	if r.DryRun {
		dry, sent = "dry run: ", "would be sent"
	}
	a.Printf("%s%s: found %s in %.2f s\n", dry, shown.Line(rep.Node), shown.Count(rep.Found, "message", "messages"), took.Seconds())
	for _, x := range rep.Exchanges {
		a.Printf("%9s of %s %s\n", shown.Number(x.Sent), shown.Line(x.Exchange), sent)
	}
	if rep.Soon > 0 {
		a.Printf("%9s due within %s: left for the plugin to deliver\n", shown.Number(rep.Soon), r.margin.String())
	}
	slices.SortStableFunc(rep.Refused, func(x, y drain.Refused) int { return cmp.Compare(y.Count, x.Count) })
	for _, x := range rep.Refused {
		a.Printf("%9s stay in %s: %s\n", shown.Number(x.Count), shown.Line(x.Exchange), shown.Line(x.Why))
	}
	if rep.Resumed > 0 {
		a.Printf("%9s an earlier run had sent; what the table still had of them was deleted first\n", shown.Number(rep.Resumed))
	}
	if rep.Twice > 0 {
		a.Notef("note: %s came to be due before they could be deleted, so the plugin delivered them too; a larger --margin avoids it", shown.Number(rep.Twice))
	}
	if rep.Other > 0 {
		a.Notef("note: %s of other virtual hosts or exchanges were not looked at", shown.Number(rep.Other))
	}
	if rep.Elsewhere > 0 {
		a.Notef("note: %d other nodes have tables of their own; give the command for each", rep.Elsewhere)
	}
	return nil
}

// maxComplaint is the maximum number of bytes of a command's standard error that are shown.
const maxComplaint = 2000

// evalBy returns a function that runs "COMMAND eval" in a shell, with the expression on standard input. The
// expression is not an argument because Debian's wrapper of rabbitmqctl expands its arguments when it runs as root.
func evalBy(command string) drain.Shell {
	return func(ctx context.Context, expression string) (io.ReadCloser, error) {
		c := exec.CommandContext(ctx, "sh", "-c", "exec "+command+" eval")
		c.WaitDelay = 10 * time.Second
		c.Stdin = strings.NewReader(expression)
		e := &evaluation{command: command, c: c}
		c.Stderr = &e.complaint
		var err error
		if e.Reader, err = c.StdoutPipe(); err != nil {
			return nil, err
		}
		if err := c.Start(); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		return e, nil
	}
}

type evaluation struct {
	io.Reader
	command   string
	c         *exec.Cmd
	complaint beginning
}

func (e *evaluation) Close() error {
	err := e.c.Wait()
	if err == nil {
		return nil
	}
	why := shown.OneLine(strings.TrimSpace(string(e.complaint)))
	if why == "" {
		return fmt.Errorf("%s eval: %w", e.command, err)
	}
	return fmt.Errorf("%s eval: %w: %s", e.command, err, why)
}

// beginning keeps the first maxComplaint bytes that are written to it.
type beginning []byte

func (b *beginning) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), maxComplaint-len(*b))]...)
	return len(p), nil
}
