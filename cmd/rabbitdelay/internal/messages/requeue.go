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
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// requeueRun is one run of requeue or discard.
type requeueRun struct {
	app.Consent

	o      inspect.RequeueOptions
	parked bool
	from   string // a saved file instead of a queue
	skip   int    // the number of lines to skip in the file
	header string

	file   string // the file that discard writes
	noFile bool
	saved  *inspect.SaveFile

	client *amqpx.Client
	ready  int // messages in the queue
	report inspect.RequeueReport
}

// RequeueCommand returns the requeue command, which sends dead letters or parked messages again.
func RequeueCommand(a *app.App) *cobra.Command {
	r := &requeueRun{Consent: app.Consent{App: a}}
	c := &cobra.Command{
		Use:   "requeue",
		Short: "Send dead letters or parked messages back to their queues",
		Long: `Send dead letters or parked messages back to their destinations, with their ids
and headers. A message leaves its queue only after the broker has confirmed the
new one.`,
		Example: `  rabbitdelay requeue --queue orders.expire.dead --dry-run
  rabbitdelay requeue --queue orders.expire.dead --reason attempts \
    --newer-than 2h --rate 50
  rabbitdelay requeue --from orders.jsonl --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error { return r.requeue(c.Context()) },
	}
	f := c.Flags()
	o := &r.o
	r.choiceFlags(f)
	f.StringVar(&r.from, "from", "", "send the messages in this `file`, which discard wrote")
	f.IntVar(&r.skip, "skip", 0, "skip this many lines at the beginning of --from")
	f.IntVar(&o.Limit, "limit", 0, "maximum number of messages to send, including messages that their destination refuses; 0 for all")
	f.Float64Var(&o.Rate, "rate", 0, "maximum number of messages a second, 0 for no limit")
	f.IntVar(&o.InFlight, "in-flight", 1, "messages sent at a time, up to 1000; if requeue is killed, this many may be sent twice")
	f.BoolVar(&o.KeepAttempts, "keep-attempts", false, "give each message only one more attempt, instead of all its attempts")
	f.StringVar(&o.To.Queue, "to-queue", "", "send the messages to this queue instead of their own destinations")
	f.StringVar(&o.To.Exchange, "to-exchange", "", "send the messages to this exchange instead of their own destinations")
	f.StringVar(&o.To.RoutingKey, "routing-key", "", "routing key for --to-exchange")
	return c
}

// choiceFlags adds the flags that select messages in a queue.
func (r *requeueRun) choiceFlags(f *pflag.FlagSet) {
	o := &r.o
	f.StringVar(&o.Queue, "queue", "", "the dead-letter queue")
	f.BoolVar(&r.parked, "parked", false, "use the parked queue instead of --queue")
	f.StringSliceVar(&o.Filter.Reasons, "reason", nil, "only messages that died for one of these reasons: rejected, attempts, deliveries, unreadable, parked, expired, maxlen, delivery_limit")
	f.StringSliceVar(&o.Filter.IDs, "id", nil, "only messages with one of these ids")
	f.StringSliceVar(&o.Filter.Destinations, "destination", nil, "only messages for one of these destinations: a queue, or exchange:routing-key")
	f.StringVar(&o.Filter.Error, "error", "", "only messages whose last error contains this text")
	f.StringVar(&o.Filter.ErrorLike, "error-like", "", "only messages whose last error matches this text, apart from numbers, ids and quoted parts; \"rabbitdelay errors\" prints such texts")
	f.StringVar(&r.header, "header", "", "only messages with the header `name=value`")
	f.Var((*app.Duration)(&o.Filter.OlderThan), "older-than", "only messages that died at least this long ago")
	f.Var((*app.Duration)(&o.Filter.NewerThan), "newer-than", "only messages that died at most this long ago")
	r.Register(f, "show what would happen, and put all messages back")
	app.DatabaseFlag(f, "")
}

func (r *requeueRun) check() error {
	o := &r.o
	switch {
	case r.o.Discard && r.parked == (o.Queue != ""):
		return errors.New("expected exactly one of --queue and --parked")
	case !r.o.Discard && !oneOf(o.Queue != "", r.parked, r.from != ""):
		return errors.New("expected exactly one of --queue, --parked and --from")
	case r.skip != 0 && r.from == "":
		return errors.New("--skip only works with --from; add --from, or omit --skip")
	case r.skip < 0:
		return fmt.Errorf("--skip: %d; expected 0 or more", r.skip)
	case r.o.Discard && !r.DryRun && !oneOf(r.file != "", r.noFile):
		return errors.New("give --save to keep the messages in a file, from which requeue can send them again, or --no-save to lose them permanently")
	case o.To.Queue != "" && (o.To.Exchange != "" || r.Given("routing-key")):
		return errors.New("expected only one destination: --to-queue, or --to-exchange with --routing-key")
	case r.Given("routing-key") && o.To.Exchange == "":
		return errors.New("--routing-key only works with --to-exchange; add --to-exchange, or omit --routing-key")
	case o.Filter.OlderThan < 0 || o.Filter.NewerThan < 0:
		return errors.New("--older-than and --newer-than: expected 0 or more")
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

// lines yields the messages of --from, except the lines that --skip leaves out.
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
			yield(inspect.SavedMessage{}, fmt.Errorf("--skip: %d; expected at most %d, the number of lines in %s", r.skip, last, r.from))
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

// place returns the queue or the file that contains the messages.
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
		if err := app.CheckTasks(ctx, s.Store.Store); err != nil {
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
	defer func() { _ = r.client.Close(context.WithoutCancel(ctx)) }() // the client is idle, so an error does not matter
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

// Count counts the messages in the queue or the file, and returns the question to ask before they are sent. For
// discard, it counts the selected messages, and discard removes no more than this number.
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
		of = "the matching messages of "
	}
	to := "back to their destinations"
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

func (r *requeueRun) Entry() change.Entry {
	e := change.Entry{Action: "requeue", Target: r.o.Queue, Detail: console.DescribeDeadLetters(r.o.Filter)}
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
	missed := ""
	if p.Missed > 0 {
		missed = fmt.Sprintf(", %d not examined", p.Missed)
	}
	if r.o.Discard {
		return fmt.Sprintf("%d examined, %d discarded, %d stayed", p.Examined, p.Discarded, p.Stayed) + missed
	}
	return fmt.Sprintf("%d examined, %d sent, %d revived, %d removed, %d stayed", p.Examined, p.Sent, p.Revived, p.Removed, p.Stayed) + missed
}

// Do requeues or discards the messages. With --dry-run, it only determines what would happen to them.
func (r *requeueRun) Do(ctx context.Context) (err error) {
	if r.file != "" && !r.DryRun {
		r.saved, err = inspect.CreateSaveFile(r.file)
		switch {
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("--save: %s already exists; give the name of a new file", r.file)
		case err != nil:
			return fmt.Errorf("--save: %w", err)
		}
		defer func() { err = errors.Join(err, r.saved.Close()) }()
		r.o.Save = r.saved.Save
	}
	bar := r.Progress(r.ready, "examining")
	defer bar.Clear()
	r.o.Progress = func(p inspect.RequeueReport) {
		bar.Set(min(p.Examined, r.ready), fmt.Sprintf("%s processed", shown.Number(p.Sent+p.Revived+p.Discarded)))
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
	case failed == nil && (r.report.Stayed > 0 || r.report.Missed > 0):
		return program.Exit(app.ExitToDo)
	case failed != nil && r.report.Line > 0:
		return fmt.Errorf("%w; to continue, run the command again with --skip %d", failed, r.report.Line)
	case failed != nil && r.saved != nil:
		return fmt.Errorf("%w; to continue, run the command again with a new file for --save", failed)
	}
	return app.AdviseRepeat(failed)
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
	{inspect.RequeueRemoved, "removed, because their tasks have ended or were sent again:", "would be removed, because their tasks have ended or were sent again:"},
	{inspect.RequeueDiscarded, "discarded, for", "would be discarded, for"},
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
	r.Printf("%s%s: examined %s of %s in %.2f s, %s chosen\n", dry, shown.Line(r.place()), shown.Number(rep.Examined), shown.Count(rep.Total, "message", "messages"), took.Seconds(), shown.Number(rep.Chosen))
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
		r.Notef("%s in %s, readable only by its owner; \"rabbitdelay requeue --from %[2]s\" sends the file's messages again", shown.Count(r.saved.Written(), "message is", "messages are"), shown.Line(r.file))
	}
	if rep.Anonymous > 0 {
		r.Notef("note: %s", r.anonymous())
	}
	if rep.Missed > 0 {
		r.Notef("note: %s not examined, because other consumers hold or have removed them; to process the ones that are still in the queue, run the command again", shown.Count(rep.Missed, "message was", "messages were"))
	}
	if rep.DiedAgain > 0 {
		r.Notef("note: %s had already been requeued and were dead-lettered again, so they stayed", shown.Number(rep.DiedAgain))
	}
	if rep.CountsDeliveries && rep.DeliveryLimit > 0 && rep.PutBack > 0 {
		r.Notef("note: each of the %s that were put back has used up one of the %d deliveries after which this queue drops a message", shown.Number(rep.PutBack), rep.DeliveryLimit)
	}
	switch {
	case rep.Moved > 0 && rep.DeliveryLimit < 0:
		r.Notef("note: %s that stayed were moved to the queue's end as copies, because before RabbitMQ 4.3 putting a message back counts towards the queue's delivery limit, which only the management API shows (broker.management_url)", shown.Number(rep.Moved))
	case rep.Moved > 0:
		r.Notef("note: %s were near the queue's delivery limit and were moved to its end as copies", shown.Number(rep.Moved))
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

// lineNumbers lists the lines of --from to which a result applies.
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
