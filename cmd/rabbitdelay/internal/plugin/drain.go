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

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/drain"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
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
		Short: "Move the plugin's waiting messages into delay queues",
		Long: `Move the messages that wait in the plugin into delay queues with their remaining
delay. It reads the plugin's table with rabbitmqctl, and deletes a message from
it only after the broker has confirmed the new one.`,
		Example: `  rabbitdelay plugin drain --dry-run \
    --rabbitmqctl "docker exec -i rabbit rabbitmqctl"
  rabbitdelay plugin drain --exchange orders \
    --rabbitmqctl "ssh rabbit-1 sudo rabbitmqctl"
  rabbitdelay plugin drain --leave-out expiration --yes`,
		RunE: func(c *cobra.Command, _ []string) error { return r.drain(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.command, "rabbitmqctl", "rabbitmqctl", "the shell `command` that runs rabbitmqctl on the node")
	f.StringVar(&r.o.State, "state", "rabbitdelay-plugin-drain.state", "the `file` that records the sent messages, for the next run")
	f.StringSliceVar(&r.o.Exchanges, "exchange", nil, "move only the messages of these exchanges")
	f.Var(&r.margin, "margin", "leave messages that are due sooner than this to the plugin, 10s or more")
	f.StringSliceVar(&r.o.LeaveOut, "leave-out", nil, "send messages without these properties: expiration, user-id, priority (above 4), or a header such as x-death")
	r.Register(f, "show what would happen, and move nothing")
	r.RegisterAudit(f)
	f.BoolVar(&r.o.OtherBroker, "other-broker", false, "move the messages from the broker of --rabbitmqctl to a different one, the broker of --url")
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
		return fmt.Errorf("delay.strategy: %s may send messages to the plugin; give --strategy bucket or ttl", s)
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

func (r *drainRun) Entry() change.Entry {
	return change.Entry{Action: "plugin.drain", Target: r.o.Vhost, Detail: strings.Join(r.o.Exchanges, ", ")}
}

func (r *drainRun) Outcome() string {
	stayed := r.report.Soon
	for _, x := range r.report.Refused {
		stayed += x.Count
	}
	return fmt.Sprintf("%s moved, %s stayed", shown.Count(r.report.Sent, "message", "messages"), shown.Number(stayed))
}

func (r *drainRun) Count(ctx context.Context) (app.Question, error) {
	done := r.Waiting("reading the plugin's table")
	head, err := drain.Look(ctx, r.o)
	done()
	r.rows = head.Rows
	switch {
	case errors.Is(err, drain.ErrOtherBroker):
		err = fmt.Errorf("%w; --rabbitmqctl must reach the broker of --url, unless --other-broker is given to move the messages to another broker", err)
	case errors.Is(err, drain.ErrSameBroker):
		err = fmt.Errorf("%w; omit --other-broker if both are the same broker, or else wait until the other drain has finished", err)
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

// Do moves the messages. With --dry-run, it only determines which messages would be moved.
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
		defer func() { _ = r.o.Client.Close(context.WithoutCancel(ctx)) }() // the client is idle, so an error does not matter
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
		return fmt.Errorf("%w; nothing is lost; to continue, run the command again with the same --state", failed)
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
		a.Printf("%9s were sent by an earlier run; their remaining rows in the table were deleted first\n", shown.Number(rep.Resumed))
	}
	if rep.Twice > 0 {
		a.Notef("note: the plugin also delivered %s that became due before the deletion from its table; a larger --margin avoids this", shown.Count(rep.Twice, "message", "messages"))
	}
	if rep.Other > 0 {
		a.Notef("note: did not read %s in other virtual hosts or for other exchanges", shown.Count(rep.Other, "message", "messages"))
	}
	if rep.Elsewhere > 0 {
		a.Notef("note: %s; run the command for each node", shown.Count(rep.Elsewhere, "other node has its own table", "other nodes have their own tables"))
	}
	return nil
}

// maxComplaint is the maximum number of bytes that are shown from a command's standard error.
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
