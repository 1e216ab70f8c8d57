package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/drain"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// drainRun is one run of plugin drain.
type drainRun struct {
	a       *app
	o       drain.Config
	command string
	margin  duration
	yes     bool
	dryRun  bool
}

func (a *app) pluginDrainCommand() *cobra.Command {
	r := &drainRun{a: a, margin: duration(drain.DefaultMargin)}
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
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.command, "rabbitmqctl", "rabbitmqctl", "the `command` that runs rabbitmqctl on the node, as for a shell")
	f.StringVar(&r.o.State, "state", "rabbitdelay-plugin-drain.state", "the `file` that says what was sent, for the next run")
	f.StringSliceVar(&r.o.Exchanges, "exchange", nil, "only the messages of this exchange, or of several")
	f.Var(&r.margin, "margin", "leave to the plugin what is due sooner than this, 10s or more")
	f.StringSliceVar(&r.o.LeaveOut, "leave-out", nil, "send messages without this: expiration, user-id, priority (above 4), or a header such as x-death")
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&r.dryRun, "dry-run", false, "say what would become of the messages, and leave them")
	f.BoolVar(&r.o.OtherBroker, "other-broker", false, "--rabbitmqctl reaches another broker than --url, to which the messages move")
	return c
}

func (r *drainRun) run(ctx context.Context) error {
	if r.margin < duration(10*time.Second) {
		return fmt.Errorf("--margin: %s; expected 10s or more", r.margin.String())
	}
	if !r.yes && !r.dryRun && !r.a.interactive() {
		return errors.New("cannot ask, because standard input is not a terminal; give --yes to move the messages without asking, or --dry-run to see what would become of them")
	}
	c, err := r.a.Load(nil, nil)
	if err != nil {
		return err
	}
	if s := c.Delay.Strategy; s == config.StrategyPlugin || s == config.StrategyAuto {
		return fmt.Errorf("delay.strategy: %s, which may send into the plugin; give --strategy bucket or ttl", s)
	}
	d, err := r.a.knock(ctx, c)
	if err != nil {
		return err
	}
	defer d.close()
	if err := drain.Lock(ctx, d.conn, c.Delay.Prefix); err != nil {
		return err
	}
	r.o.Margin, r.o.Prefix, r.o.Shell = time.Duration(r.margin), c.Delay.Prefix, evalBy(r.command)
	r.o.Vhost, r.o.User = d.conn.Config.Vhost, userOf(d.conn)
	done := r.a.Waiting("looking at the plugin's table")
	head, err := drain.Look(ctx, r.o)
	done()
	if err != nil {
		return explainLook(err)
	}
	if !r.yes && !r.dryRun && head.Rows > 0 {
		if err := r.ask(string(head.Node), head.Rows); err != nil {
			return err
		}
	}
	s, err := c.Strategy(ctx, r.a.Logger())
	if err != nil {
		return err
	}
	if r.dryRun {
		return r.rehearse(ctx, c, d.conn, s, head.Rows)
	}
	if r.o.Client, err = r.a.openWith(ctx, c, s); err != nil {
		return err
	}
	defer func() { _ = r.o.Client.Close(context.WithoutCancel(ctx)) }() // nothing is under way
	return r.drain(ctx, head.Rows)
}

func (r *drainRun) rehearse(ctx context.Context, c *config.Config, conn *amqp.Connection, s amqpx.Strategy, rows int64) error {
	cfg, err := c.Client(s, r.a.Logger())
	if err != nil {
		return err
	}
	if r.o.DryRun, err = amqpx.Rehearse(conn, cfg); err != nil {
		return err
	}
	return r.drain(ctx, rows)
}

// explainLook says which setting is wrong.
func explainLook(err error) error {
	switch {
	case errors.Is(err, drain.ErrOtherBroker):
		return fmt.Errorf("%w: --rabbitmqctl has to reach the broker of --url; give --other-broker if its messages are to move from there to --url", err)
	case errors.Is(err, drain.ErrSameBroker):
		return fmt.Errorf("%w: leave --other-broker out if it is the same, else let the other drain end", err)
	}
	return err
}

// userOf is the user of a connection.
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

func (r *drainRun) ask(node string, rows int64) error {
	if _, err := fmt.Fprintf(r.a.Stderr, "Move up to %s of virtual host %s out of the plugin's table on %s? Type their number, %d, to confirm: ",
		counted(rows, "message"), shown.Line(r.o.Vhost), shown.Line(node), rows); err != nil {
		return err
	}
	line, err := r.a.answer()
	if err == nil && line != strconv.FormatInt(rows, 10) {
		err = errors.New("no message was moved")
	}
	return err
}

func (r *drainRun) drain(ctx context.Context, rows int64) error {
	began := time.Now()
	bar := r.a.Progress(int(rows), "moving")
	r.o.Progress = func(p drain.Report) {
		bar.Set(int(min(p.Found, rows)), grouped(p.Sent)+" sent")
	}
	rep, err := drain.Run(ctx, r.o)
	bar.Clear()
	if rep.Node == "" {
		return err // nothing was read
	}
	if perr := r.tell(rep, time.Since(began)); perr != nil {
		return errors.Join(err, perr)
	}
	switch {
	case err != nil && ctx.Err() == nil && !r.dryRun:
		return fmt.Errorf("%w; nothing is lost: give the command again, with the same --state, to go on", err)
	case err != nil:
		return err
	case len(rep.Refused) > 0:
		return program.Exit(exitToDo)
	}
	return nil
}

// drained is the result of plugin drain.
type drained struct {
	DryRun bool `json:"dry_run,omitempty"`
	drain.Report
	Seconds float64 `json:"seconds"`
}

func (r *drainRun) tell(rep drain.Report, took time.Duration) error {
	a := r.a
	if a.JSON {
		return a.PrintJSON(drained{r.dryRun, rep, seconds(took)})
	}
	dry, sent := "", "sent, confirmed, and deleted from the plugin's table"
	if r.dryRun {
		dry, sent = "dry run: ", "would be sent"
	}
	a.Printf("%s%s: found %s in %.2f s\n", dry, shown.Line(rep.Node), counted(rep.Found, "message"), took.Seconds())
	for _, x := range rep.Exchanges {
		a.Printf("%9s of %s %s\n", grouped(x.Sent), shown.Line(x.Exchange), sent)
	}
	if rep.Soon > 0 {
		a.Printf("%9s due within %s: left for the plugin to deliver\n", grouped(rep.Soon), r.margin.String())
	}
	slices.SortStableFunc(rep.Refused, func(x, y drain.Refused) int { return cmp.Compare(y.Count, x.Count) })
	for _, x := range rep.Refused {
		a.Printf("%9s stay in %s: %s\n", grouped(x.Count), shown.Line(x.Exchange), shown.Line(x.Why))
	}
	if rep.Resumed > 0 {
		a.Printf("%9s an earlier run had sent; what the table still had of them was deleted first\n", grouped(rep.Resumed))
	}
	if rep.Twice > 0 {
		a.Notef("note: %s came to be due before they could be deleted, so the plugin delivered them too; a larger --margin avoids it", grouped(rep.Twice))
	}
	if rep.Other > 0 {
		a.Notef("note: %s of other virtual hosts or exchanges were not looked at", grouped(rep.Other))
	}
	if rep.Elsewhere > 0 {
		a.Notef("note: %d other nodes have tables of their own; give the command for each", rep.Elsewhere)
	}
	return nil
}
