package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// requeueRun is one run of requeue.
type requeueRun struct {
	a            *app
	o            amqpx.RequeueOptions
	parked       bool
	header       string
	older, newer duration
	db           string
	yes          bool
}

func (a *app) requeueCommand() *cobra.Command {
	r := &requeueRun{a: a}
	c := &cobra.Command{
		Use:   "requeue",
		Short: "Send dead letters or parked messages back to where they belong",
		Long: `requeue takes messages out of a dead-letter queue, or of the parked queue, and
sends each back to the queue in which it died, or to which it was sent: under its
id, with its headers. It acknowledges a message when the broker has confirmed it.

It takes what is there when it begins and no more: a message that dies again
meanwhile stays. What the filters do not choose stays in its place (on RabbitMQ
before 4.0 at the queue's end), and so does what cannot go: requeue says how many,
and why. It stops trying a destination that is gone, full or forbidden, and
creates none.

Interrupted, it loses nothing. Killed, it leaves at most --in-flight messages that
come twice, under their ids.

The dead letter of a task goes by the task's row, so it needs the database: a
failed task is revived, and a relay sends it; the dead letter of a task that is
over, or was revived before, is removed.

Before RabbitMQ 4.3 a quorum queue counts each message that is put back, with
--dry-run too, and drops it beyond its delivery limit. The queues that rabbitdelay
declares have none that is reached; in others, a message near the limit goes to the
queue's end instead, as a copy that has all its deliveries again. Only the
management API tells the limit, because a policy may lower it. Where it does not
answer, everything that stays goes to the queue's end, and --dry-run is refused.
A kill costs the messages that are held, up to 250 and those that stay, a delivery
each: one that was at its limit is dropped.

Exit code: 0 all that was chosen went, or with --dry-run would go; 2 some of it
stayed; 1 error.`,
		Example: `  rabbitdelay requeue --queue orders.expire.dead --dry-run
  rabbitdelay requeue --queue orders.expire.dead --reason attempts --newer-than 2h --rate 50
  rabbitdelay requeue --queue orders.expire.dead --id order-42-expire
  rabbitdelay requeue --parked -f delays.yaml`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	o := &r.o
	r.choiceFlags(f)
	f.Float64Var(&o.Rate, "rate", 0, "the most messages a second, 0 for no limit")
	f.IntVar(&o.InFlight, "in-flight", 1, "messages sent at a time, up to 1000; so many may come twice if requeue is killed")
	f.BoolVar(&o.KeepAttempts, "keep-attempts", false, "one more attempt, instead of all of them anew")
	f.StringVar(&o.To.Queue, "to-queue", "", "send them to this queue instead")
	f.StringVar(&o.To.Exchange, "to-exchange", "", "send them to this exchange instead")
	f.StringVar(&o.To.RoutingKey, "routing-key", "", "routing key for --to-exchange")
	f.StringVar(&r.db, "db", "", databaseUsage)
	return c
}

// choiceFlags say which messages of a queue are meant.
func (r *requeueRun) choiceFlags(f *pflag.FlagSet) {
	o := &r.o
	f.StringVar(&o.Queue, "queue", "", "the dead-letter queue")
	f.BoolVar(&r.parked, "parked", false, "the parked queue instead")
	f.StringSliceVar(&o.Filter.Reasons, "reason", nil, "messages that died for this reason, or one of several: rejected, attempts, deliveries, unreadable, parked, expired, maxlen, delivery_limit")
	f.StringSliceVar(&o.Filter.IDs, "id", nil, "the message with this id, or one of several")
	f.StringSliceVar(&o.Filter.Destinations, "destination", nil, "messages that belong to this queue, or exchange:routing-key")
	f.StringVar(&o.Filter.Error, "error", "", "messages whose last error contains this text")
	f.StringVar(&r.header, "header", "", "messages with this header, `name=value`")
	f.Var(&r.older, "older-than", "messages that died at least this long ago")
	f.Var(&r.newer, "newer-than", "messages that died at most this long ago")
	f.IntVar(&o.Limit, "limit", 0, "the most messages that go, 0 for all")
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.DryRun, "dry-run", false, "say what would become of them, and put them back")
}

func (r *requeueRun) check() error {
	o := &r.o
	switch {
	case r.parked == (o.Queue != ""):
		return errors.New("give one of --queue and --parked")
	case o.To.Queue != "" && (o.To.Exchange != "" || r.a.Given("routing-key")):
		return errors.New("both --to-queue and --to-exchange or --routing-key; give one destination")
	case r.a.Given("routing-key") && o.To.Exchange == "":
		return errors.New("--routing-key is for --to-exchange; give both")
	case r.older < 0 || r.newer < 0:
		return errors.New("--older-than, --newer-than: expected 0 or more")
	case o.InFlight < 1: // the SDK takes 0 for the default
		return fmt.Errorf("--in-flight: %d; expected 1 to 1000", o.InFlight)
	}
	o.Filter.OlderThan, o.Filter.NewerThan = time.Duration(r.older), time.Duration(r.newer)
	if r.header == "" {
		return nil
	}
	var ok bool
	if o.Filter.Header, o.Filter.HeaderValue, ok = strings.Cut(r.header, "="); !ok || o.Filter.Header == "" {
		return fmt.Errorf("--header: expected name=value, got %q", r.header)
	}
	return nil
}

func (r *requeueRun) run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	cfg, err := r.a.Load(r.a.Database(r.db), nil)
	if err != nil {
		return err
	}
	if r.parked {
		r.o.Queue = topology.ParkedQueue(cfg.Delay.Prefix)
	}
	if err := r.o.Validate(cfg.Delay.Prefix); err != nil {
		return err
	}
	if !r.yes && !r.o.DryRun && !r.a.interactive() {
		return errors.New("cannot ask, because standard input is not a terminal; give --yes to go on without asking, or --dry-run to see what would become of the messages")
	}
	if cfg.Database.URL != "" && !r.o.Discard {
		db, err := openTasksDB(cfg)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }() // nothing is under way
		store, err := schedule.New(db, nil, schedule.Config{Logger: r.a.Logger()})
		if err != nil {
			return err
		}
		if err := checkTasks(ctx, store); err != nil {
			return err
		}
		r.o.Tasks = store
	}
	client, err := r.client(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }() // nothing is under way
	info, err := client.QueueInfo(ctx, r.o.Queue)
	if err != nil {
		return err
	}
	if r.yes || r.o.DryRun || info.Ready == 0 {
		return r.requeue(ctx, client, info.Ready)
	}
	ask := r.ask
	if r.o.Discard {
		if ask, err = r.countDiscarded(ctx, client); err != nil {
			return err
		}
	}
	if err := ask(info.Ready); err != nil {
		return err
	}
	return r.requeue(ctx, client, info.Ready)
}

// client declares nothing: a command by hand may have been given the wrong file.
func (r *requeueRun) client(ctx context.Context, c *config.Config) (*amqpx.Client, error) {
	d, err := r.a.knock(ctx, c) // which says what answered, instead of trying for long
	if err != nil {
		return nil, err
	}
	r.o.Management, err = r.a.managementIfThere(ctx, c, d.conn)
	d.close()
	if err != nil {
		return nil, err
	}
	s, err := c.Strategy(ctx, r.a.Logger())
	if err != nil {
		return nil, err
	}
	c.Broker.Declare = amqpx.DeclareNothing
	return r.a.openWith(ctx, c, undeclared{s})
}

// undeclared is a strategy whose objects need not be there.
type undeclared struct{ amqpx.Strategy }

// Topology is empty.
func (undeclared) Topology() topology.Topology { return topology.Topology{} }

func (r *requeueRun) ask(ready int) error {
	what := "Send " + counted(int64(ready), "message")
	if r.o.Limit > 0 || !r.o.Filter.Empty() {
		what = "Send those chosen of " + counted(int64(ready), "message")
	}
	to := "back to where they belong"
	if r.o.To != (topology.Destination{}) {
		to = "to " + r.o.To.String()
	}
	return r.yesTo("no message was sent", "%s in %s %s? Type yes: ", what, shown.Line(r.o.Queue), to)
}

// yesTo asks. Any other answer is the error that says what was not done.
func (r *requeueRun) yesTo(otherwise, question string, args ...any) error {
	if _, err := fmt.Fprintf(r.a.Stderr, question, args...); err != nil {
		return err
	}
	line, err := r.a.answer()
	if err == nil && line != "yes" {
		err = errors.New(otherwise)
	}
	return err
}

func (r *requeueRun) requeue(ctx context.Context, c *amqpx.Client, ready int) error {
	began := time.Now()
	bar := r.a.Progress(ready, "looking")
	r.o.Progress = func(p amqpx.RequeueReport) {
		bar.Set(min(p.Looked, ready), fmt.Sprintf("%s gone", grouped(int64(p.Sent+p.Revived+p.Discarded))))
	}
	rep, err := c.Requeue(ctx, r.o)
	bar.Clear()
	if errors.Is(err, amqpx.ErrPeek) { // before it looked at anything
		return err
	}
	if perr := r.tell(rep, time.Since(began)); perr != nil {
		return perr
	}
	switch {
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w; give the command again to go on", err)
	case err != nil:
		return err
	case rep.Stayed > 0:
		return program.Exit(exitToDo)
	}
	return nil
}
