package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// requeueRun is one run of requeue or of discard.
type requeueRun struct {
	app.Consent

	o      inspect.RequeueOptions
	parked bool
	from   string // a saved file instead of a queue
	skip   int    // the number of lines of the file to skip
	header string

	file   string // the file that discard writes
	noFile bool
	saved  *inspect.SaveFile

	client *amqpx.Client
	ready  int // messages in the queue
	report inspect.RequeueReport
}

// RequeueCommand returns the command requeue.
func RequeueCommand(a *app.App) *cobra.Command {
	r := &requeueRun{Consent: app.Consent{App: a}}
	c := &cobra.Command{
		Use:   "requeue",
		Short: "Send dead letters or parked messages back to where they belong",
		Long: `requeue takes messages out of a dead-letter queue, or of the parked queue, and
sends each back to the queue in which it died, or to which it was sent: under its
id, with its headers. It acknowledges a message when the broker has confirmed it.

It takes what is there when it begins and no more: a message that dies again
meanwhile stays. What the filters do not choose stays in its place (on RabbitMQ
before 4.0 at a quorum queue's end), and so does what cannot go: requeue says how
many, and why. It stops trying a destination that is gone, full or forbidden, and
creates none.

Interrupted, it loses nothing. Killed, it leaves at most --in-flight messages that
come twice, under their ids.

With --from it sends the messages of a file that "rabbitdelay discard" has written,
as they stand there: whoever edits the body of a line mends the message. The whole
file is read before the first message is sent, and a mistake in it names its line
and sends nothing. The file stays as it is, and a second run sends everything
again, under the same ids. After an interruption --skip goes on where the first run
was.

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
  rabbitdelay requeue --parked -f delays.yaml
  rabbitdelay requeue --from orders.jsonl --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error { return r.requeue(c.Context()) },
	}
	f := c.Flags()
	o := &r.o
	r.choiceFlags(f)
	f.StringVar(&r.from, "from", "", "the messages of this `file` instead, which discard has written")
	f.IntVar(&r.skip, "skip", 0, "leave out so many lines at the beginning of --from")
	f.Float64Var(&o.Rate, "rate", 0, "the most messages a second, 0 for no limit")
	f.IntVar(&o.InFlight, "in-flight", 1, "messages sent at a time, up to 1000; so many may come twice if requeue is killed")
	f.BoolVar(&o.KeepAttempts, "keep-attempts", false, "one more attempt, instead of all of them anew")
	f.StringVar(&o.To.Queue, "to-queue", "", "send them to this queue instead")
	f.StringVar(&o.To.Exchange, "to-exchange", "", "send them to this exchange instead")
	f.StringVar(&o.To.RoutingKey, "routing-key", "", "routing key for --to-exchange")
	return c
}

// choiceFlags adds the flags that select messages of a queue.
func (r *requeueRun) choiceFlags(f *pflag.FlagSet) {
	o := &r.o
	f.StringVar(&o.Queue, "queue", "", "the dead-letter queue")
	f.BoolVar(&r.parked, "parked", false, "the parked queue instead")
	f.StringSliceVar(&o.Filter.Reasons, "reason", nil, "messages that died for this reason, or one of several: rejected, attempts, deliveries, unreadable, parked, expired, maxlen, delivery_limit")
	f.StringSliceVar(&o.Filter.IDs, "id", nil, "the message with this id, or one of several")
	f.StringSliceVar(&o.Filter.Destinations, "destination", nil, "messages that belong to this queue, or exchange:routing-key")
	f.StringVar(&o.Filter.Error, "error", "", "messages whose last error contains this text")
	f.StringVar(&o.Filter.ErrorLike, "error-like", "", "messages whose last error differs from this text in numbers, ids and quoted parts only, as \"rabbitdelay errors\" shows it")
	f.StringVar(&r.header, "header", "", "messages with this header, `name=value`")
	f.Var((*app.Duration)(&o.Filter.OlderThan), "older-than", "messages that died at least this long ago")
	f.Var((*app.Duration)(&o.Filter.NewerThan), "newer-than", "messages that died at most this long ago")
	f.IntVar(&o.Limit, "limit", 0, "the most messages that go, or that their destination refuses, 0 for all")
	r.Register(f, "say what would become of them, and put them back")
	app.DatabaseFlag(f, "")
}

func (r *requeueRun) check() error {
	o := &r.o
	switch {
	case r.o.Discard && r.parked == (o.Queue != ""):
		return errors.New("give one of --queue and --parked")
	case !r.o.Discard && !oneOf(o.Queue != "", r.parked, r.from != ""):
		return errors.New("give one of --queue, --parked and --from")
	case r.skip != 0 && (r.from == "" || r.skip < 0):
		return fmt.Errorf("--skip: %d; expected how many lines of --from are left out", r.skip)
	case r.o.Discard && !r.DryRun && !oneOf(r.file != "", r.noFile):
		return errors.New("give --save for the messages, from which requeue can send them again, or --no-save to lose them for good")
	case o.To.Queue != "" && (o.To.Exchange != "" || r.Given("routing-key")):
		return errors.New("both --to-queue and --to-exchange or --routing-key; give one destination")
	case r.Given("routing-key") && o.To.Exchange == "":
		return errors.New("--routing-key is for --to-exchange; give both")
	case o.Filter.OlderThan < 0 || o.Filter.NewerThan < 0:
		return errors.New("--older-than, --newer-than: expected 0 or more")
	case o.InFlight < 1: // the SDK would use its default for 0
		return fmt.Errorf("--in-flight: %d; expected 1 to 1000", o.InFlight)
	}
	if r.from != "" {
		o.From = r.lines()
	}
	o.DryRun = r.DryRun
	if r.header == "" {
		return nil
	}
	var err error
	o.Filter.Header, o.Filter.HeaderValue, err = app.ParseHeader(r.header)
	return err
}

// lines yields the messages of --from, without the lines that --skip omits.
func (r *requeueRun) lines() iter.Seq2[inspect.SavedMessage, error] {
	return func(yield func(inspect.SavedMessage, error) bool) {
		last := 0
		for m, err := range inspect.SavedIn(r.from) {
			last = m.Line
			if (err != nil || m.Line > r.skip) && !yield(m, err) {
				return
			}
		}
		if r.skip > last {
			yield(inspect.SavedMessage{}, fmt.Errorf("--skip: %d; expected at most %d, the lines of %s", r.skip, last, r.from))
		}
	}
}

func oneOf(given ...bool) bool {
	n := 0
	for _, g := range given {
		if g {
			n++
		}
	}
	return n == 1
}

// place returns the queue or the file that has the messages.
func (r *requeueRun) place() string { return cmp.Or(r.o.Queue, r.from) }

func (r *requeueRun) requeue(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	cfg, err := r.Load(nil)
	if err != nil {
		return err
	}
	if r.parked {
		r.o.Queue = topology.ParkedQueue(cfg.Delay.Prefix)
	}
	if err := r.o.Validate(cfg.Delay.Prefix); err != nil {
		return byFlag(err)
	}
	if err := r.Possible(); err != nil {
		return err
	}
	if cfg.Database.URL != "" && !r.o.Discard {
		s, err := r.OpenStore(cfg)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := app.CheckTasks(ctx, s.Store); err != nil {
			return err
		}
		r.o.Tasks, r.DB = s.Store, s.DB
	}
	end, err := r.OpenAudit(cfg)
	if err != nil {
		return err
	}
	defer end()
	if r.client, r.o.Management, err = r.OpenUndeclared(ctx, cfg); err != nil {
		return err
	}
	defer func() { _ = r.client.Close(context.WithoutCancel(ctx)) }() // the client is idle
	return r.Run(ctx, r)
}

// byFlag converts an error about a field of RequeueOptions to one about the flag that sets the field.
func byFlag(err error) error {
	f, ok := errors.AsType[*topology.FieldError](err)
	if !ok {
		return err
	}
	name := map[string]string{"InFlight": "in-flight", "Reasons": "reason", "To": "to-queue"}[f.Field]
	return fmt.Errorf("--%s: %s; expected %s", cmp.Or(name, strings.ToLower(f.Field)), f.Given(), f.Want)
}

// Count counts the messages in the queue or the file. For discard, it counts the selected messages, and discard
// removes no more than this number.
func (r *requeueRun) Count(ctx context.Context) (q app.Question, err error) {
	if r.ready, err = r.waiting(ctx); err != nil {
		return q, err
	}
	switch {
	case r.ready == 0 || r.Yes || r.DryRun:
		return q, nil
	case r.o.Discard:
		return r.countDiscarded(ctx)
	}
	of := ""
	if r.o.Limit > 0 || !r.o.Filter.Empty() {
		of = "those chosen of "
	}
	to := "back to where they belong"
	if r.o.To != (topology.Destination{}) {
		to = "to " + r.o.To.String()
	}
	return app.Question{
		Text:     fmt.Sprintf("Send %s%s in %s %s? Type yes: ", of, shown.Count(r.ready, "message", "messages"), shown.Line(r.place()), to),
		Declined: "no message was sent",
	}, nil
}

func (r *requeueRun) waiting(ctx context.Context) (n int, err error) {
	if r.from == "" {
		info, err := r.client.QueueInfo(ctx, r.o.Queue)
		return info.Ready, err
	}
	for _, err := range r.o.From {
		if err != nil {
			return n, fmt.Errorf("%w; nothing was sent", err)
		}
		n++
	}
	return n, nil
}

func (r *requeueRun) Entry() console.AuditEntry {
	e := console.AuditEntry{Action: "requeue", Target: r.o.Queue, Detail: console.DescribeDeadLetters(r.o.Filter)}
	add := func(text string) { e.Detail = strings.TrimPrefix(e.Detail+"; "+text, "; ") }
	if r.o.Discard {
		e.Action = "discard"
	}
	if r.o.Limit > 0 {
		add("at most " + shown.Count(r.o.Limit, "message", "messages"))
	}
	if r.from != "" {
		add("from " + r.from)
	}
	if r.file != "" {
		add("into " + r.file)
	}
	if r.o.To != (topology.Destination{}) {
		add("to " + r.o.To.String())
	}
	return e
}

func (r *requeueRun) Outcome() string {
	p := r.report
	if r.o.Discard {
		return fmt.Sprintf("%d looked at, %d discarded, %d stayed", p.Looked, p.Discarded, p.Stayed)
	}
	return fmt.Sprintf("%d looked at, %d sent, %d revived, %d removed, %d stayed", p.Looked, p.Sent, p.Revived, p.Removed, p.Stayed)
}

// Do requeues or discards the messages, or with --dry-run finds out what would happen to them.
func (r *requeueRun) Do(ctx context.Context) (err error) {
	if r.file != "" && !r.DryRun {
		r.saved, err = inspect.CreateSaveFile(r.file)
		switch {
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("--save: %s is there already, and no file is written over; give another name", r.file)
		case err != nil:
			return fmt.Errorf("--save: %w", err)
		}
		defer func() { err = errors.Join(err, r.saved.Close()) }()
		r.o.Save = r.saved.Save
	}
	bar := r.Progress(r.ready, "looking")
	defer bar.Clear()
	r.o.Progress = func(p inspect.RequeueReport) {
		bar.Set(min(p.Looked, r.ready), fmt.Sprintf("%s gone", shown.Number(p.Sent+p.Revived+p.Discarded)))
	}
	r.report, err = inspect.Requeue(ctx, r.client, r.o)
	return err
}

func (r *requeueRun) Tell(took time.Duration, failed error) error {
	if errors.Is(failed, inspect.ErrPeek) || r.file != "" && r.saved == nil && failed != nil { // it failed before reading any message
		return failed
	}
	if err := r.printReport(took); err != nil {
		return err
	}
	switch {
	case failed == nil && r.report.Stayed > 0:
		return program.Exit(app.ExitToDo)
	case failed != nil && r.report.Line > 0:
		return fmt.Errorf("%w; give the command again with --skip %d to go on", failed, r.report.Line)
	case failed != nil && r.saved != nil:
		return fmt.Errorf("%w; give the command again with another --save to go on", failed)
	}
	return app.GoOn(failed)
}

type requeued struct {
	Queue  string `json:"queue,omitempty"`
	From   string `json:"from,omitempty"`
	File   string `json:"file,omitempty"` // the file with the discarded messages
	DryRun bool   `json:"dry_run,omitempty"`
	inspect.RequeueReport
	Seconds float64 `json:"seconds"`
}

// outcomes describes the outcomes, in the order in which they are printed.
var outcomes = []struct {
	is         inspect.RequeueOutcome
	did, would string
}{
	{inspect.RequeueSent, "sent to", "would be sent to"},
	{inspect.RequeueRevived, "revived; a relay sends them to", "would be revived; a relay sends them to"},
	{inspect.RequeueRemoved, "removed, because their tasks are over or were sent anew:", "would be removed, because their tasks are over or were sent anew:"},
	{inspect.RequeueDiscarded, "discarded, of", "would be discarded, of"},
	{inspect.RequeueStayed, "stayed, for", "would stay, for"},
}

func (r *requeueRun) printReport(took time.Duration) error {
	rep := r.report
	if r.JSON {
		out := requeued{Queue: r.o.Queue, From: r.from, DryRun: r.DryRun, RequeueReport: rep, Seconds: app.Seconds(took)}
		if r.saved != nil && r.saved.Written() > 0 {
			out.File = r.file
		}
		return r.PrintJSON(out)
	}
	dry := ""
	if r.DryRun {
		dry = "dry run: "
	}
	r.Printf("%s%s: looked at %s of %s in %.2f s, %s chosen\n", dry, shown.Line(r.place()), shown.Number(rep.Looked), shown.Count(rep.Total, "message", "messages"), took.Seconds(), shown.Number(rep.Chosen))
	slices.SortStableFunc(rep.Results, func(x, y inspect.RequeueResult) int { return cmp.Compare(y.Count, x.Count) })
	for _, o := range outcomes {
		for _, x := range rep.Results {
			if x.Outcome != o.is {
				continue
			}
			verb, why := o.did, ""
			if r.DryRun {
				verb = o.would
			}
			if x.Why != "" {
				why = ": " + shown.Line(x.Why)
			}
			why += lineNumbers(x)
			r.Printf("%9s %s %s%s\n", shown.Number(x.Count), verb, shown.Line(cmp.Or(x.Destination, "an unknown destination")), why)
		}
	}
	if r.saved != nil && r.saved.Written() > 0 {
		r.Notef("%s in %s, readable by its owner alone; to send them again: rabbitdelay requeue --from %[2]s", shown.Count(r.saved.Written(), "message is", "messages are"), shown.Line(r.file))
	}
	if rep.Anonymous > 0 {
		r.Notef("note: %s", r.anonymous())
	}
	if rep.Again > 0 {
		r.Notef("note: %s died again after they were sent, and stayed", shown.Number(rep.Again))
	}
	if rep.CountsDeliveries && rep.DeliveryLimit > 0 && rep.PutBack > 0 {
		r.Notef("note: the %s that were put back have one delivery less of the %d that this queue allows before it drops a message", shown.Number(rep.PutBack), rep.DeliveryLimit)
	}
	switch {
	case rep.Moved > 0 && rep.DeliveryLimit < 0:
		r.Notef("note: %s that stayed went to the queue's end, as copies: before RabbitMQ 4.3 a message that is put back counts towards the queue's delivery limit, and only the management API tells it (broker.management_url)", shown.Number(rep.Moved))
	case rep.Moved > 0:
		r.Notef("note: %s were near the queue's delivery limit and went to its end, as copies", shown.Number(rep.Moved))
	}
	return nil
}

// anonymous lists the messages that lost their user ids.
func (r *requeueRun) anonymous() string {
	rep := r.report
	ids := slices.Clone(rep.AnonymousIDs)
	for i, id := range ids {
		ids[i] = shown.Line(cmp.Or(id, "one without an id"))
	}
	if more := rep.Anonymous - len(ids); more > 0 {
		ids = append(ids, shown.Number(more)+" more")
	}
	verb := "lost"
	if r.DryRun {
		verb = "would lose"
	}
	whose := "its user id"
	if rep.Anonymous > 1 {
		whose = "their user ids"
	}
	return fmt.Sprintf("%s %s %s (%s): %s", shown.Count(rep.Anonymous, "message", "messages"), verb, whose, strings.Join(ids, ", "), shown.Line(rep.WhyAnonymous))
}

// lineNumbers returns the lines of --from to which a result applies, if there are any.
func lineNumbers(x inspect.RequeueResult) string {
	if len(x.Lines) == 0 {
		return ""
	}
	var list []string
	for _, n := range x.Lines {
		list = append(list, strconv.Itoa(n))
	}
	if more := x.Count - len(x.Lines); more > 0 {
		list = append(list, fmt.Sprintf("%s more", shown.Number(more)))
	}
	return " (line " + strings.Join(list, ", ") + ")"
}
