package trace

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
	public "github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Source configures what Take reads.
type Source struct {
	// Status specifies how to reach the broker and the tasks, and which destinations exist. Its Peek is the number of
	// messages of each dead-letter queue and of the parked queue that are searched. The default, which is also the
	// maximum, is inspect.MaxPeek.
	Status status.Source
	// DB is the database with the idempotency records; nil if there is none.
	DB *sql.DB
	// Queues are additional queues that may contain the message as a dead letter, and Scopes are additional scopes of
	// idempotency records. The queues of the destinations and of the task are always searched.
	Queues, Scopes []string
}

// closeTimeout limits closing the connection to the broker.
const closeTimeout = 2 * time.Second

// Take finds out what is known about a message id or task id. It changes nothing; see inspect.Peek for the side effects
// of searching dead-letter queues. Trace.Unchecked lists everything that did not answer. The errors are the same as for
// status.Take.
func Take(ctx context.Context, id string, src Source) (Trace, error) {
	if id == "" {
		return Trace{}, errors.New("trace: the id is empty; expected the id of a message or task")
	}
	limit := min(cmp.Or(src.Status.Peek, inspect.MaxPeek), inspect.MaxPeek)
	src.Status.Peek, src.Status.Broker.SkipClock, src.Status.Broker.Delays = 0, true, true
	s, err := status.Take(ctx, src.Status)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{ID: id, At: s.At}
	for _, u := range s.Unchecked { // ignore what the doctor alone checks
		switch u.Area {
		case status.AreaBroker, doctor.AreaDatabase, doctor.AreaManagement, doctor.AreaMessages:
			t.Unchecked = append(t.Unchecked, u)
		}
	}
	patience := cmp.Or(src.Status.Patience, status.DefaultPatience)
	t.database(ctx, src, s, patience)
	t.unknown(s)
	if s.Broker != nil {
		t.Waiting, t.Unsearched = []status.Delay{}, []string{}
	}
	if s.Broker.Managed() {
		t.Stuck = []status.Destination{}
	}
	for _, l := range s.Layouts {
		t.Waiting = append(t.Waiting, l.Delays...)
	}
	for _, d := range s.Destinations {
		switch {
		case d.Waiting.Total() == 0:
		case d.Exchange:
			t.Stuck = append(t.Stuck, d)
		default:
			t.Unsearched = append(t.Unsearched, d.Queue)
		}
	}
	if !s.Broker.Managed() {
		src.Status.Broker.Management = nil // it did not answer just now, and a request for each queue would have to wait
	}
	if s.Broker != nil {
		one, cancel := context.WithTimeout(ctx, patience)
		t.search(one, src, s, limit)
		cancel()
	}
	if err := ctx.Err(); err != nil {
		return Trace{}, err
	}
	t.Nowhere = s.Empty() && len(t.DeadLetters) == 0
	t.Why = t.Explain()
	return t, nil
}

// unknown lists in Unchecked the queues that may contain the message but do not report how many messages they have, or
// only how many are ready.
func (t *Trace) unknown(s status.Status) {
	if t.notSeen(doctor.AreaMessages) {
		return
	}
	var silent, partial []string
	add := func(name string, unknown bool, notReady *int64) {
		switch {
		case name == "":
		case unknown:
			silent = append(silent, name)
		case notReady == nil && s.Broker.Managed(): // without the management API this applies to all queues
			partial = append(partial, name)
		}
	}
	for _, l := range s.Layouts {
		add(l.Name, l.Waiting.Unknown, l.Waiting.InTransit())
	}
	for _, d := range s.Destinations {
		if d.Exists {
			add(d.Queue, d.Waiting.Unknown, d.Waiting.InTransit())
		}
		if d.Dead != nil {
			add(d.Dead.Queue, d.Dead.Unknown, d.Dead.Held)
		}
	}
	if s.Broker != nil {
		add(s.Parked.Queue, s.Parked.Unknown, s.Parked.Held)
	}
	if len(silent) > 0 {
		t.unchecked(doctor.AreaMessages, fmt.Errorf("the number of messages in these queues is unknown: %s", strings.Join(unique(silent), ", ")))
	}
	if len(partial) > 0 {
		t.unchecked(doctor.AreaMessages, fmt.Errorf("the number of messages that are not ready is unknown, because the management API has not counted these queues yet: %s", strings.Join(unique(partial), ", ")))
	}
}

// notSeen reports whether an area is listed in Unchecked.
func (t *Trace) notSeen(a doctor.Area) bool {
	return slices.ContainsFunc(t.Unchecked, func(u doctor.Unchecked) bool { return u.Area == a })
}

func (t *Trace) unchecked(a doctor.Area, err error) {
	t.Unchecked = append(t.Unchecked, doctor.Unchecked{Area: a, Why: strings.ReplaceAll(err.Error(), "\n", "; ")})
}

// database reads what the database has about the id, unless the database is known not to answer.
func (t *Trace) database(ctx context.Context, src Source, s status.Status, patience time.Duration) {
	if slices.ContainsFunc(s.Unchecked, func(u doctor.Unchecked) bool { return u.Area == doctor.AreaDatabase }) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t.row(ctx, src.Status.Tasks, s, src.Status.Want.Prefix)
	if src.DB == nil {
		return
	}
	t.Scopes = append([]string{}, unique(append(t.queues(s), src.Scopes...))...)
	records, err := idempotency.Find(ctx, src.DB, t.ID, t.Scopes...)
	t.RecordsKnown = err == nil
	if err != nil && !errors.Is(err, idempotency.ErrNoTable) { // without the table there are no records
		t.unchecked(doctor.AreaDatabase, err)
		return
	}
	t.Records = append([]idempotency.Record{}, records...)
}

// row reads the task, and what handlers have recorded about it.
func (t *Trace) row(ctx context.Context, store *taskview.Store, s status.Status, prefix string) {
	if store == nil || s.Tasks == nil {
		return
	}
	t.Relays, t.At = s.Tasks.Relays, s.Tasks.Clock(s.At)
	task, err := store.Get(ctx, schedule.NoTx, t.ID)
	switch {
	case errors.Is(err, schedule.ErrNotFound):
		t.TasksKnown, t.Effects = true, []taskview.Effect{} // there are none, because they are deleted with the task
		return
	case err != nil:
		t.unchecked(doctor.AreaDatabase, err)
		return
	}
	t.Task, t.TasksKnown = &task, true
	if effects, err := store.Effects(ctx, t.ID); err != nil {
		t.unchecked(doctor.AreaDatabase, err)
	} else {
		t.Effects = append([]taskview.Effect{}, effects...)
	}
	d := task.Destination()
	if d.ToExchange() {
		t.Route = d.TargetQueue(cmp.Or(prefix, topology.DefaultPrefix))
	}
	for i, h := range s.Tasks.Held {
		if h.Queue == d.Queue && h.Exchange == d.Exchange {
			t.Held = &s.Tasks.Held[i]
		}
	}
	for i, have := range s.Destinations {
		if have.Name == d.Queue || d.ToExchange() && have.Name == d.Exchange+":"+d.RoutingKey {
			t.Destination = &s.Destinations[i]
		}
	}
}

// queues returns the destinations' queues whose consumers may have handled the message.
func (t *Trace) queues(s status.Status) []string {
	var list []string
	for _, d := range s.Destinations {
		if !d.Exchange {
			list = append(list, d.Queue)
		}
	}
	if t.Task != nil && t.Task.Queue != "" {
		list = append(list, t.Task.Queue)
	}
	for _, e := range t.Effects {
		list = append(list, e.Queue)
	}
	return list
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// search searches the dead-letter queues and the parked queue.
func (t *Trace) search(ctx context.Context, src Source, s status.Status, limit int) {
	conn, err := src.Status.Broker.Dial(ctx)
	if err != nil {
		t.unchecked(status.AreaBroker, err)
		return
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // nothing is left to do
	// Collect the queues that may contain the message as a dead letter or a parked message, and how many of their messages
	// are not ready. This number is nil if unknown.
	held, silent := map[string]*int64{s.Parked.Queue: s.Parked.Held}, map[string]bool{s.Parked.Queue: s.Parked.Unknown}
	for _, q := range t.queues(s) {
		held[topology.Destination{Queue: q}.DeadLetterQueue()] = nil
	}
	for _, q := range src.Queues {
		held[q] = nil
	}
	for _, d := range s.Destinations {
		if d.Dead != nil {
			held[d.Dead.Queue], silent[d.Dead.Queue] = d.Dead.Held, d.Dead.Unknown
		}
		if _, asked := held[d.Queue]; asked {
			held[d.Queue] = d.Waiting.InTransit()
		}
	}
	queues := slices.Sorted(maps.Keys(held))
	ready, err := live.Counts(ctx, conn, queues)
	if err != nil {
		t.unchecked(status.AreaDeadLetters, err)
		return
	}
	t.Searched, t.DeadLetters = []Searched{}, []inspect.DeadLetter{}
	for _, q := range queues {
		n, counted := ready[q]
		asked := slices.Contains(src.Queues, q) // names that the caller did not give may be guesses
		switch {
		case n.Missing && !asked, silent[q]: // Trace.Unchecked lists the silent ones
			continue
		case n.Unavailable != "":
			t.unchecked(doctor.AreaMessages, &live.UnavailableError{Queue: q, Reason: n.Unavailable})
			continue
		case counted && !n.Missing && n.Ready == 0:
			t.Searched = append(t.Searched, searched(q, 0, 0, held[q]))
			continue
		}
		got, err := inspect.Peek(ctx, conn, q, inspect.PeekOptions{Limit: limit, Prefix: src.Status.Want.Prefix, Management: live.Public[*public.Management](src.Status.Broker.Management)})
		if err != nil {
			t.unchecked(status.AreaDeadLetters, err)
			continue
		}
		t.Searched = append(t.Searched, searched(q, len(got.Messages), got.More, held[q]))
		for _, m := range got.Messages {
			if m.ID == t.ID {
				t.DeadLetters = append(t.DeadLetters, m)
			}
		}
		for _, n := range got.Notes {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", q, n))
		}
	}
}

// searched describes the search of a queue. Its parameters are the numbers of ready messages that were read, of ready
// messages that were not read, and of messages that are not ready, which is nil if unknown.
func searched(queue string, read, more int, notReady *int64) Searched {
	s := Searched{Queue: queue, Sampled: read, Messages: int64(read + more), ReadyOnly: notReady == nil}
	if notReady != nil {
		s.Messages += *notReady
	}
	return s
}
