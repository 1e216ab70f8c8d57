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
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// RequeueOptions choose what Requeue takes, and what it does with it. Only Queue, or From, is required.
type RequeueOptions struct {
	// Queue is a dead-letter queue, or the parked queue (topology.ParkedQueue).
	Queue string
	// From has the messages instead, such as SavedIn for a file that Save has filled. It is read to its end
	// before anything is sent, so that a mistake in it sends nothing, and then once more. It stays as it is: a
	// second run sends the messages again, under the same ids.
	From iter.Seq2[SavedMessage, error]
	// Filter chooses among its messages. The zero value chooses all.
	Filter DeadLetterFilter
	// To is where they go, a queue or an exchange with a routing key. The zero value: each to where it belongs,
	// DeadLetter.Destination. Messages that are no dead letters go only with To.
	To topology.Destination
	// KeepAttempts leaves the number of the attempt that failed last as it is, so that a message whose attempts
	// are used up has one more. Otherwise attempts start anew. What the earlier ones failed of stays with the
	// message either way.
	KeepAttempts bool
	// Limit ends the run after so many messages that went or that their destination did not take; 0 for no limit. So
	// a run with a limit of 1 tries a destination without looking through the whole queue when it refuses.
	Limit int
	// Rate is how many messages may go each second; 0 for no limit.
	Rate float64
	// InFlight is how many messages are sent at a time, 1 to 1000, default 1. A process that is killed may leave
	// so many that come twice.
	InFlight int
	// Discard removes the messages instead, those that cannot be read too, and the dead letters of tasks without
	// asking Tasks: for good, unless Save keeps them. What is no dead letter stays.
	Discard bool
	// Save keeps messages before Discard removes them, InFlight at a time; SaveFile.Save is one. A message is
	// removed only when Save has returned nil for it. An error ends the run, and the messages stay.
	Save func([]SavedMessage) error
	// DryRun decides about each message and puts it back.
	DryRun bool
	// Management has the queue's delivery limit, towards which a message that is put back counts before RabbitMQ
	// 4.3. Without it nothing is put back there, unless the queue is a classic one: what stays goes to the end of
	// the queue as a copy, and DryRun returns a *PeekError.
	Management *live.Management
	// Tasks decides about dead letters of tasks; *schedule.Store is one. Without it they stay where they are,
	// because a message alone does not revive a task.
	Tasks TaskStore
	// Progress is called after every message that was looked at.
	Progress func(RequeueReport)
}

// TaskStore decides about the dead letter of a task.
type TaskStore interface {
	// RequeueDead decides what becomes of it: RequeueSent, its message is to be sent; RequeueRevived, its row is
	// pending again and the dead letter can go; RequeueRemoved, the task is over or has a newer message, and the
	// dead letter can go; RequeueStayed, for the reason why, as for every other outcome. With dryRun it changes
	// nothing.
	RequeueDead(ctx context.Context, l *DeadLetter, dryRun bool) (outcome RequeueOutcome, why string, err error)
}

// RequeueOutcome is what became of a message that was chosen.
type RequeueOutcome string

// Outcomes of Requeue.
const (
	RequeueSent    RequeueOutcome = "sent"    // confirmed by the broker, then acknowledged
	RequeueRevived RequeueOutcome = "revived" // its task is pending again
	RequeueRemoved RequeueOutcome = "removed" // its task is over, or has a newer message
	RequeueStayed  RequeueOutcome = "stayed"

	RequeueDiscarded RequeueOutcome = "discarded" // by RequeueOptions.Discard
)

// RequeueReport is what a run has done, or with DryRun would do.
type RequeueReport struct {
	Total  int `json:"total"`  // ready at the beginning, or in From; no more are taken
	Looked int `json:"looked"` // how many of them were looked at
	Chosen int `json:"chosen"`

	Sent    int `json:"sent"`
	Revived int `json:"revived"`
	Removed int `json:"removed"`
	Stayed  int `json:"stayed"` // chosen, and for a reason still there

	Discarded int `json:"discarded"`

	// Line is the line of From up to which all is done, so that another run need not begin before the next; 0
	// without From.
	Line int `json:"line,omitempty"`

	// Again counts messages that were sent back during the run, by this one or another, and have died again. They
	// are not chosen.
	Again int `json:"again"`
	// Moved counts messages that stayed and went to the end of the queue, as copies, because its delivery limit
	// might have dropped them had they been put back.
	Moved int `json:"moved"`
	// Anonymous counts messages that were sent, or copied, without the user id that they had: the broker takes none
	// but that of the client's login, unless the login has the tag impersonator. A user id that only the header
	// rabbitdelay-carried has is not taken from there, because anybody may write that.
	Anonymous int `json:"anonymous,omitempty"`
	// AnonymousIDs are the ids of the first 20 of them, and WhyAnonymous is the first one's reason.
	AnonymousIDs []string `json:"anonymous_ids,omitempty"`
	WhyAnonymous string   `json:"why_anonymous,omitempty"`
	// PutBack counts messages that were taken and put back.
	PutBack int `json:"put_back"`
	// CountsDeliveries: the broker counts each message that is put back towards a delivery limit (quorum queues
	// before RabbitMQ 4.3), and DeliveryLimit is that limit; -1: unknown.
	CountsDeliveries bool  `json:"counts_deliveries"`
	DeliveryLimit    int64 `json:"delivery_limit"`

	// Results are the chosen messages by destination, outcome and reason.
	Results []RequeueResult `json:"results"`
}

// RequeueResult counts messages that had the same fate.
type RequeueResult struct {
	Destination string         `json:"destination"` // a queue, or "exchange:routing key"; empty if unknown
	Outcome     RequeueOutcome `json:"outcome"`
	Why         string         `json:"why,omitempty"` // of what stayed
	Count       int            `json:"count"`
	Lines       []int          `json:"lines,omitempty"` // of RequeueOptions.From that stayed, the first 20
}

// Gone is how many have left the queue.
func (r *RequeueReport) Gone() int { return r.Sent + r.Revived + r.Removed + r.Discarded }

// Requeue sends dead letters, or parked messages, back to where they belong. Each is published under its id, with
// the headers of the application and, where the broker takes it, the user id, and acknowledged when the broker has confirmed it. It goes straight to its
// destination, without a delay, unless it was parked before it was due.
//
// A run takes the messages that are ready when it begins, and no more: not those that come meanwhile, nor what it
// sent and died again. Messages that are not chosen, or cannot go, are held until the run ends and then put back,
// in their place (before RabbitMQ 4.0, at a quorum queue's end); to keep their order a run with a Limit may hold
// up to 20,000 further messages for a moment. Before RabbitMQ 4.3 a quorum queue counts what is put back towards
// its delivery limit; see RequeueOptions.Management. A destination that is gone, forbidden or full is not tried
// again in the same run. Nor is one that gives no answer within 10 s; its message may have been taken, and may
// come twice.
//
// When ctx ends, messages that are being sent are seen to their end. A process that is killed, or a connection
// that is lost, leaves at most InFlight messages that were sent and are still there: a second run sends them
// again, under the same ids. Before 4.3 the broker counts a delivery for each message that was held, and drops
// one that has no more left. Two runs at once share the messages. The broker's consumer timeout (30 min) bounds
// how long messages may be held, and so a run that leaves messages behind.
//
// The report is what was done, also beside an error. Errors: those of amqpx, ErrConfig, ErrClosed and ErrBlocked,
// a *PeekError for a stream, the context's, an *amqp091.Error (NotFound for a queue that does not exist).
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
	c := inner.Of(client)
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
		err = fmt.Errorf("%s: %w", strings.TrimSpace("requeue "+o.Queue), err)
	}
	return r.rep, err
}

// Validate checks every field but Tasks. Prefix is that of the delay objects, Strategy.Prefix. Errors:
// amqpx.ErrConfig.
func (o *RequeueOptions) Validate(prefix string) error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: requeue: %w", amqpx.ErrConfig, &topology.FieldError{Field: field, Value: value, Want: want})
	}
	switch {
	case o.From != nil && (o.Queue != "" || o.Discard):
		return bad("From", "From", "none with Queue, which it replaces, or Discard")
	case o.Save != nil && !o.Discard:
		return bad("Save", "Save", "none without Discard")
	case o.From == nil && (o.Queue == "" || len(o.Queue) > topology.MaxRoutingKey):
		return bad("Queue", o.Queue, "the name of a dead-letter queue, or "+topology.ParkedQueue(prefix))
	case naming.Reserved(prefix, o.Queue) && o.Queue != topology.ParkedQueue(prefix):
		return bad("Queue", o.Queue, "a dead-letter queue, or "+topology.ParkedQueue(prefix)+"; messages in other queues of a strategy are on their way")
	case o.InFlight < 0 || o.InFlight > 1000:
		return bad("InFlight", o.InFlight, "1 to 1000")
	case o.Limit < 0:
		return bad("Limit", o.Limit, "0 or more")
	case o.Rate < 0 || math.IsNaN(o.Rate):
		return bad("Rate", o.Rate, "0 or more messages a second")
	case o.Filter.OlderThan < 0 || o.Filter.NewerThan < 0:
		return bad("Filter", fmt.Sprintf("%v, %v", o.Filter.OlderThan, o.Filter.NewerThan), "durations of 0 or more")
	case slices.ContainsFunc(o.Filter.Reasons, func(reason string) bool { return !slices.Contains(deadReasons, reason) }):
		return bad("Reasons", strings.Join(o.Filter.Reasons, ", "), strings.Join(deadReasons, ", "))
	case o.Discard && o.To != topology.Destination{}:
		return bad("To", o.To.String(), "none with Discard")
	case o.To == topology.Destination{}:
		return nil
	case o.From == nil && o.To.Queue == o.Queue:
		return bad("To", o.To.Queue, "another queue than the one that messages are taken from")
	}
	if err := o.To.Validate(prefix); err != nil {
		return fmt.Errorf("%w: requeue: To: %w", amqpx.ErrConfig, err)
	}
	return nil
}

// requeue is one run.
type requeue struct {
	c      inner.Client
	prefix string // of the delay objects
	o      RequeueOptions
	began  time.Time
	rep    RequeueReport

	src   source
	users userIDs
	taken []*letter // and not yet looked at
	portions

	refused map[topology.Destination]string    // why no more messages go there
	existed map[topology.Destination]time.Time // when one was seen to be there
	next    time.Time                          // when the next message may go, by Rate
	failed  int                                // messages whose destination did not take them
}

// run takes the messages, in portions, and puts those back that stay.
func (r *requeue) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.src.end(r.taken)) }() // also if Save panics
	for err == nil && r.rep.Looked < r.rep.Total && !r.full() {
		if r.taken, err = r.src.take(ctx, r.portion()); err != nil || len(r.taken) == 0 {
			break
		}
		err = r.process(ctx)
	}
	return err
}

// full reports whether no more may go.
func (r *requeue) full() bool { return r.o.Limit > 0 && r.tried() >= r.o.Limit }

// tried returns how many messages count towards the limit: those that went, and those that a destination refused.
func (r *requeue) tried() int { return r.rep.Gone() + r.failed }

const (
	maxPortion = 250 // messages in memory
	maxLines   = 20  // that a result names, and ids that a report names
)

// portion is how many messages to take next: few when they go slowly, because what is taken is kept from
// everybody else.
func (r *requeue) portion() int {
	n := min(r.portions.next(), r.rep.Total-r.rep.Looked)
	if r.o.Limit > 0 && r.o.Filter.Empty() {
		n = min(n, r.o.Limit-r.tried())
	}
	if r.o.Rate > 0 && r.o.Filter.Empty() {
		n = min(n, max(1, int(r.o.Rate)))
	}
	return max(n, 1)
}

// process decides about a portion and sends what goes, InFlight at a time.
func (r *requeue) process(ctx context.Context) error {
	var round []*letter
	defer func() { r.taken = append(r.taken, round...) }() // chosen, and the run has ended
	for len(r.taken) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := r.taken[0]
		r.taken = r.taken[1:]
		r.rep.Looked++
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

// anonymous counts a message that lost its user id for a reason.
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

// settle counts a letter, if it was chosen, and reports the progress.
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
