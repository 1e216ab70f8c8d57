package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// RequeueOptions selects the messages that Requeue processes and what it does with them. Either Queue or From is
// required; all other fields are optional.
type RequeueOptions struct {
	// Queue is a dead-letter queue, or the parked queue (topology.ParkedQueue).
	Queue string
	// From supplies the messages instead of Queue, for example SavedIn for a file that Save has written. Requeue reads
	// From twice: first to its end, so that an invalid entry is found before any message is sent, and then to send the
	// messages. From itself is not changed, so a second run sends the messages again, with the same ids.
	From iter.Seq2[SavedMessage, error]
	// Filter selects messages. The zero value selects all of them.
	Filter DeadLetterFilter
	// To is the queue, or the exchange and routing key, that messages are sent to. With the zero value each message is
	// sent to its own DeadLetter.Destination. Messages that are not dead letters are sent only if To is set.
	To topology.Destination
	// KeepAttempts keeps the number of the attempt that failed last, so that a message that has used up its attempts
	// gets one more. By default, attempts are counted from 1 again. The errors of earlier attempts stay with the
	// message in both cases.
	KeepAttempts bool
	// Limit stops the run after this many messages were either sent or refused by their destination; 0 means no limit.
	// With a limit of 1, a run therefore tries a destination once and stops if it refuses, without going through the
	// whole queue.
	Limit int
	// Rate limits how many messages are sent each second; 0 means no limit.
	Rate float64
	// InFlight is how many messages are sent concurrently, from 1 to 1000; the default is 1. If the process is killed,
	// up to that many messages may be delivered twice.
	InFlight int
	// Discard permanently removes the messages instead of sending them. This includes unreadable messages, and the dead
	// letters of tasks, for which Tasks is not consulted. Set Save to keep a copy. Messages that are not dead letters
	// stay.
	Discard bool
	// Save stores messages before Discard removes them, up to InFlight in each call. SaveFile.Save is an
	// implementation. A message is removed only after Save has returned nil for it. An error stops the run, and the
	// messages stay in the queue.
	Save func([]SavedMessage) error
	// DryRun reports what would be done with each message and puts it back.
	DryRun bool
	// Management is used to read the queue's delivery limit. Before RabbitMQ 4.3, putting a message back counts towards
	// that limit. Without Management on such a broker, nothing is put back unless the queue is a classic queue:
	// messages that stay are copied to the end of the queue instead, and DryRun returns a *PeekError.
	Management *live.Management
	// Tasks decides what happens to the dead letters of tasks. *schedule.Store implements it. Without it these messages
	// stay in the queue, because a message alone does not revive a task.
	Tasks TaskStore
	// Progress is called with the current report after each message has been processed.
	Progress func(RequeueReport)
}

// TaskStore decides what happens to the dead letter of a task.
type TaskStore interface {
	// RequeueDead decides what to do with the dead letter l. RequeueSent means that the message is sent. RequeueRevived
	// means that the task's row is pending again, so the dead letter can be removed. RequeueRemoved means that the task
	// is over or has a newer message, so the dead letter can be removed. RequeueStayed, or any other value, means that
	// the message stays in the queue for the reason in the returned string. If dryRun is true, RequeueDead changes
	// nothing.
	RequeueDead(ctx context.Context, l *DeadLetter, dryRun bool) (outcome RequeueOutcome, why string, err error)
}

// RequeueOutcome is the result for a message that was selected.
type RequeueOutcome string

// The outcomes of Requeue.
const (
	RequeueSent    RequeueOutcome = "sent"    // confirmed by the broker, then acknowledged
	RequeueRevived RequeueOutcome = "revived" // its task is pending again
	RequeueRemoved RequeueOutcome = "removed" // its task is over, or has a newer message
	RequeueStayed  RequeueOutcome = "stayed"

	RequeueDiscarded RequeueOutcome = "discarded" // by RequeueOptions.Discard
)

// RequeueReport describes what a run has done or, with DryRun, would do.
type RequeueReport struct {
	Total    int `json:"total"`    // messages that were ready at the beginning, or that are in From; no more are taken
	Examined int `json:"examined"` // how many of them were examined
	Chosen   int `json:"chosen"`
	// Missed counts messages that were ready at the beginning and were not examined, because other consumers, such as
	// another run, hold them or have removed them. Another run finds the ones that are still in the queue.
	Missed int `json:"missed"`

	Sent    int `json:"sent"`
	Revived int `json:"revived"`
	Removed int `json:"removed"`
	Stayed  int `json:"stayed"` // selected, but still in the queue for the reason in Results

	Discarded int `json:"discarded"`

	// Line is the last line of From up to which all messages have been processed, so that another run can continue
	// after it. It is 0 without From.
	Line int `json:"line,omitempty"`

	// DiedAgain counts messages that were sent back during this run, by this run or by another one, and have become
	// dead letters again. They are not selected.
	DiedAgain int `json:"died_again"`
	// Moved counts messages that stayed but were copied to the end of the queue, because putting them back might have
	// exceeded the queue's delivery limit.
	Moved int `json:"moved"`
	// Anonymous counts messages that were sent or copied without their user id. The broker only accepts the user id of
	// the client's login, unless the login has the impersonator tag. A user id that is known only from the header
	// rabbitdelay-carried is not used, because any publisher can write that header.
	Anonymous int `json:"anonymous,omitempty"`
	// AnonymousIDs has the ids of the first 20 of these messages, and WhyAnonymous has the first one's reason.
	AnonymousIDs []string `json:"anonymous_ids,omitempty"`
	WhyAnonymous string   `json:"why_anonymous,omitempty"`
	// PutBack counts messages that were taken and put back.
	PutBack int `json:"put_back"`
	// CountsDeliveries reports that the broker counts each message that is put back towards a delivery limit, as quorum
	// queues do before RabbitMQ 4.3. DeliveryLimit is that limit, or -1 if it is unknown.
	CountsDeliveries bool  `json:"counts_deliveries"`
	DeliveryLimit    int64 `json:"delivery_limit"`

	// Results counts the selected messages by destination, outcome and reason.
	Results []RequeueResult `json:"results"`
}

// RequeueResult counts messages with the same destination, outcome and reason.
type RequeueResult struct {
	Destination string         `json:"destination"` // a queue, or "exchange:routing key"; empty if unknown
	Outcome     RequeueOutcome `json:"outcome"`
	Why         string         `json:"why,omitempty"` // why the messages stayed
	Count       int            `json:"count"`
	Lines       []int          `json:"lines,omitempty"` // the first 20 lines of RequeueOptions.From that stayed
}

// Gone returns how many messages have left the queue.
func (r *RequeueReport) Gone() int { return r.Sent + r.Revived + r.Removed + r.Discarded }

// Requeue sends dead letters or parked messages back to their destinations. Each message is published with its id, the
// application's headers and, if the broker accepts it, its user id, and is acknowledged after the broker has confirmed
// it. It goes straight to its destination without a delay, unless it was parked before it was due.
//
// A run takes only the messages that are ready when it begins. It takes neither messages that arrive later nor messages
// that it has sent and that have become dead letters again. Messages that are not selected, or that cannot be sent, are
// held until the run ends and are then put back in their original position (at the end of a quorum queue before
// RabbitMQ 4.0). To preserve their order, a run with a Limit may briefly hold up to 20,000 further messages. Before
// RabbitMQ 4.3, a quorum queue counts each message that is put back towards its delivery limit; see
// RequeueOptions.Management. A destination that does not exist, is full, or that the user is not allowed to write to,
// is not tried again in the same run. The same applies to a destination that does not answer within 10 s, whose message
// may have been accepted and may be delivered twice.
//
// When ctx ends, Requeue waits for the messages that are being sent. If the process is killed or the connection is
// lost, up to InFlight messages may have been sent and still be in the queue, so a second run sends them again with the
// same ids. In that case a broker before 4.3 counts a delivery for each message that was held, and drops a message that
// exceeds its limit. Two concurrent runs share the messages, and each counts those of the other run as
// RequeueReport.Missed. The broker's consumer timeout (30 min) limits how long messages may be held, and therefore the
// duration of a run that leaves messages behind.
//
// The report says what was done, even if an error is returned. The error may be amqpx.ErrConfig, amqpx.ErrClosed or
// amqpx.ErrBlocked, a *PeekError for a stream, the context's error, or an *amqp091.Error (NotFound for a queue that
// does not exist).
func Requeue(ctx context.Context, client *amqpx.Client, o RequeueOptions) (RequeueReport, error) {
	o.InFlight = cmp.Or(o.InFlight, 1)
	if o.Progress == nil {
		o.Progress = func(RequeueReport) {}
	}
	if client == nil {
		return RequeueReport{}, fmt.Errorf("%w: requeue: the client is nil; expected one that amqpx.Open returned", amqpx.ErrConfig)
	}
	prefix := client.Strategy().Prefix()
	if err := o.Validate(prefix); err != nil {
		return RequeueReport{}, err
	}
	c := client.Internals(inner.Access{})
	end, err := c.Begin()
	if err != nil {
		return RequeueReport{}, err
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.Stopped(), cancel)()
	r := &requeue{
		users: userIDs{c: c, refused: map[string]string{}},
		c:     c, prefix: prefix, o: o, began: time.Now(), rep: RequeueReport{Results: []RequeueResult{}}, portions: portions{most: maxPortion},
		refused: map[topology.Destination]string{}, existed: map[topology.Destination]time.Time{},
	}
	if o.From != nil {
		r.src = &savedSource{list: o.From, prefix: prefix}
	} else {
		r.src = &queueSource{taker: taker{queue: o.Queue, forced: c.Forced()}, client: client, r: r}
	}
	if r.rep.Total, err = r.src.begin(ctx); err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		what := "requeue "
		if o.Discard {
			what = "discard "
		}
		err = fmt.Errorf("%s: %w", strings.TrimSpace(what+o.Queue), err)
	}
	return r.rep, err
}

// Validate checks all fields except Tasks. The parameter prefix is the prefix of the delay objects, as returned by
// Strategy.Prefix. Errors wrap amqpx.ErrConfig.
func (o *RequeueOptions) Validate(prefix string) error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: requeue: %w", amqpx.ErrConfig, &topology.FieldError{Field: field, Value: value, Want: want})
	}
	switch {
	case o.From != nil && (o.Queue != "" || o.Discard):
		return fmt.Errorf("%w: requeue: From is set together with Queue or Discard; set only one of them", amqpx.ErrConfig)
	case o.Save != nil && !o.Discard:
		return fmt.Errorf("%w: requeue: Save is set without Discard; set both or neither", amqpx.ErrConfig)
	case o.From == nil && (o.Queue == "" || len(o.Queue) > topology.MaxRoutingKey):
		return bad("Queue", o.Queue, "the name of a dead-letter queue, or "+topology.ParkedQueue(prefix))
	case naming.Reserved(prefix, o.Queue) && o.Queue != topology.ParkedQueue(prefix):
		return bad("Queue", o.Queue, "a dead-letter queue, or "+topology.ParkedQueue(prefix)+"; messages in a strategy's other queues are still being delayed")
	case o.InFlight < 0 || o.InFlight > 1000:
		return bad("InFlight", o.InFlight, "1 to 1000")
	case o.Limit < 0:
		return bad("Limit", o.Limit, "0 or more")
	case o.Rate < 0 || math.IsNaN(o.Rate):
		return bad("Rate", o.Rate, "0 or more messages a second")
	case o.Filter.OlderThan < 0:
		return bad("Filter.OlderThan", o.Filter.OlderThan, "0 or more")
	case o.Filter.NewerThan < 0:
		return bad("Filter.NewerThan", o.Filter.NewerThan, "0 or more")
	case units.Duration(o.Filter.OlderThan) != "":
		return fmt.Errorf("%w: requeue: Filter.OlderThan: %s", amqpx.ErrConfig, units.Duration(o.Filter.OlderThan))
	case units.Duration(o.Filter.NewerThan) != "":
		return fmt.Errorf("%w: requeue: Filter.NewerThan: %s", amqpx.ErrConfig, units.Duration(o.Filter.NewerThan))
	case slices.ContainsFunc(o.Filter.Reasons, func(reason string) bool { return !slices.Contains(deadReasons, reason) }):
		return bad("Reasons", strings.Join(o.Filter.Reasons, ", "), strings.Join(deadReasons, ", "))
	case o.Discard && o.To != topology.Destination{}:
		return bad("To", o.To.String(), "none with Discard")
	case o.To == topology.Destination{}:
		return nil
	case o.From == nil && o.To.Queue == o.Queue:
		return bad("To", o.To.Queue, "a queue other than the one that messages are taken from")
	}
	if err := o.To.Validate(prefix); err != nil {
		return fmt.Errorf("%w: requeue: To: %w", amqpx.ErrConfig, err)
	}
	return nil
}

// requeue is the state of one call to Requeue.
type requeue struct {
	c      inner.Client
	prefix string // prefix of the delay objects
	o      RequeueOptions
	began  time.Time
	rep    RequeueReport

	src   source
	users userIDs
	taken []*letter // received but not yet examined
	portions

	refused map[topology.Destination]string    // why no more messages are sent there
	existed map[topology.Destination]time.Time // when a destination was last found to exist
	next    time.Time                          // when the next message may be sent, according to Rate
	failed  int                                // number of messages that their destination refused
}

// run takes the messages in batches, processes them, and puts back the ones that stay.
func (r *requeue) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.src.end(r.taken)) }() // put the messages back even if Save panics
	for err == nil && r.rep.Examined < r.rep.Total && !r.full() {
		if r.taken, err = r.src.take(ctx, r.portion()); err != nil || len(r.taken) == 0 {
			break
		}
		err = r.process(ctx)
	}
	if err == nil && !r.full() {
		r.rep.Missed = r.rep.Total - r.rep.Examined
	}
	return err
}

// full reports whether the limit has been reached.
func (r *requeue) full() bool { return r.o.Limit > 0 && r.tried() >= r.o.Limit }

// tried returns how many messages count towards the limit: the ones that have left the queue and the ones that a
// destination refused.
func (r *requeue) tried() int { return r.rep.Gone() + r.failed }

const (
	maxPortion = 250 // maximum number of messages in a batch, which is kept in memory
	maxLines   = 20  // maximum number of lines in a result, and of ids in a report
)

// portion returns how many messages to take next. It takes few if they are sent slowly, because messages that are held
// are not available to other consumers.
func (r *requeue) portion() int {
	n := min(r.portions.next(), r.rep.Total-r.rep.Examined)
	if r.o.Limit > 0 && r.o.Filter.Empty() {
		n = min(n, r.o.Limit-r.tried())
	}
	if r.o.Rate > 0 && r.o.Filter.Empty() {
		n = min(n, max(1, int(r.o.Rate)))
	}
	return max(n, 1)
}

// process selects messages of a batch and sends them, InFlight at a time.
func (r *requeue) process(ctx context.Context) error {
	var round []*letter
	defer func() { r.taken = append(r.taken, round...) }() // if the run ends early, put these back too: they were selected but not sent
	for len(r.taken) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := r.taken[0]
		r.taken = r.taken[1:]
		r.rep.Examined++
		r.saw(&l.raw)
		chosen, err := r.decide(ctx, l)
		if err != nil {
			round = append(round, l)
			return err
		}
		if stays := !chosen || l.fate.Outcome == RequeueStayed || r.o.DryRun; stays {
			r.settle(l, chosen)
			if err := r.src.keep(l); err != nil {
				return err
			}
		} else {
			round = append(round, l)
		}
		full := r.o.Limit > 0 && r.tried()+len(round) >= r.o.Limit
		if len(round) == r.o.InFlight || len(round) > 0 && (len(r.taken) == 0 || full) {
			if err := r.pace(ctx, len(round)); err != nil {
				return err
			}
			now := round
			round = nil
			if err := r.send(ctx, now); err != nil {
				return err
			}
		}
		if len(round) == 0 {
			r.rep.Line = l.line
		}
		if r.full() {
			return nil
		}
	}
	return nil
}

// anonymous records that a message was sent without its user id, and why. It does nothing if the reason is empty, which
// means that the message kept its user id.
func (r *RequeueReport) anonymous(id, why string) {
	if why == "" {
		return
	}
	if r.Anonymous++; r.Anonymous == 1 {
		r.WhyAnonymous = why
	}
	if len(r.AnonymousIDs) < maxLines {
		r.AnonymousIDs = append(r.AnonymousIDs, id)
	}
}

// settle counts a letter if it was selected, and reports the progress.
func (r *requeue) settle(l *letter, chosen bool) {
	if rep := &r.rep; chosen {
		rep.Chosen++
		*map[RequeueOutcome]*int{
			RequeueSent: &rep.Sent, RequeueRevived: &rep.Revived, RequeueRemoved: &rep.Removed, RequeueStayed: &rep.Stayed, RequeueDiscarded: &rep.Discarded,
		}[l.fate.Outcome]++
		if l.fate.Outcome == RequeueSent {
			rep.anonymous(l.ID, l.lost)
		}
		i := slices.IndexFunc(rep.Results, func(x RequeueResult) bool {
			return x.Destination == l.fate.Destination && x.Outcome == l.fate.Outcome && x.Why == l.fate.Why
		})
		if i < 0 {
			i = len(rep.Results)
			rep.Results = append(rep.Results, l.fate)
		}
		x := &rep.Results[i]
		x.Count++
		if l.line > 0 && x.Outcome == RequeueStayed && len(x.Lines) < maxLines {
			x.Lines = append(x.Lines, l.line)
		}
	}
	r.o.Progress(r.rep)
}
