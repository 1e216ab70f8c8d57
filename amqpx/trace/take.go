package trace

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Source is what Take reads.
type Source struct {
	// Status says how the broker and the tasks are reached, and which destinations
	// there are. Its Peek is how many messages of each dead-letter queue, and of the
	// parked queue, are searched; default and most amqpx.MaxPeek.
	Status status.Source
	// DB has the records of idempotency; nil: none.
	DB *sql.DB
	// Queues are further ones that may have the message dead, and Scopes further
	// ones of idempotency. The queues of the destinations and of the task are
	// searched anyway.
	Queues, Scopes []string
}

// closeTimeout bounds the goodbye to the broker.
const closeTimeout = 2 * time.Second

// Take finds out what is known of a message or task id. It changes nothing; see
// amqpx.Peek for what the search in dead-letter queues disturbs. What does not
// answer is in Trace.Unseen; the errors are those of status.Take.
func Take(ctx context.Context, id string, src Source) (Trace, error) {
	if id == "" {
		return Trace{}, errors.New("trace: the id is empty; expected a message id or a task's id")
	}
	limit := min(cmp.Or(src.Status.Peek, amqpx.MaxPeek), amqpx.MaxPeek)
	src.Status.Peek, src.Status.Broker.SkipClock = 0, true
	s, err := status.Take(ctx, src.Status)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{ID: id, At: s.At, Unseen: relevant(s.Unseen)}
	t.row(ctx, src.Status.Tasks, s)
	t.records(ctx, src, s)
	for _, l := range s.Layouts {
		t.Waiting = append(t.Waiting, l.Delays...)
	}
	if s.Broker != nil {
		t.search(ctx, src, s, limit)
	}
	if err := ctx.Err(); err != nil {
		return Trace{}, err
	}
	t.Why = t.Explain()
	return t, nil
}

// relevant leaves out what a doctor would have looked at.
func relevant(all []doctor.Unseen) []doctor.Unseen {
	return slices.DeleteFunc(slices.Clone(all), func(u doctor.Unseen) bool {
		return u.Area != status.AreaBroker && u.Area != doctor.AreaDatabase && u.Area != doctor.AreaManagement
	})
}

func (t *Trace) unseen(a doctor.Area, err error) {
	t.Unseen = append(t.Unseen, doctor.Unseen{Area: a, Why: strings.ReplaceAll(err.Error(), "\n", "; ")})
}

// row reads the task, and what handlers have recorded of it.
func (t *Trace) row(ctx context.Context, store *schedule.Store, s status.Status) {
	if store == nil || s.Tasks == nil {
		return
	}
	task, err := store.Get(ctx, nil, t.ID)
	switch {
	case errors.Is(err, schedule.ErrNotFound):
		t.TasksKnown = true
		return
	case err != nil:
		t.unseen(doctor.AreaDatabase, err)
		return
	}
	t.Task, t.TasksKnown = &task, true
	if t.Effects, err = store.Effects(ctx, nil, t.ID); err != nil {
		t.unseen(doctor.AreaDatabase, err)
	}
	d := task.Destination()
	for i, have := range s.Destinations {
		if have.Name == d.Queue || d.ToExchange() && have.Name == d.Exchange+":"+d.RoutingKey {
			t.Destination = &s.Destinations[i]
		}
	}
}

// queues are the destinations' that may have handled the message.
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

// records reads what idempotency has.
func (t *Trace) records(ctx context.Context, src Source, s status.Status) {
	if src.DB == nil {
		return
	}
	t.Scopes = unique(append(t.queues(s), src.Scopes...))
	var err error
	t.Records, err = idempotency.Find(ctx, src.DB, t.ID, t.Scopes...)
	t.RecordsKnown = err == nil
	if err != nil && !errors.Is(err, idempotency.ErrNoTable) { // without the table nobody records
		t.unseen(doctor.AreaDatabase, err)
	}
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// search looks into dead-letter queues and the parked queue.
func (t *Trace) search(ctx context.Context, src Source, s status.Status, limit int) {
	counts := map[string]int64{s.Parked.Queue: s.Parked.Messages}
	for _, q := range t.queues(s) { // of those that are not listed nothing is known
		counts[topology.Destination{Queue: q}.DeadLetterQueue()] = -1
	}
	for _, d := range s.Destinations {
		if d.Dead != nil {
			counts[d.Dead.Queue] = d.Dead.Messages
		} else if !d.Exchange {
			delete(counts, topology.Destination{Queue: d.Queue}.DeadLetterQueue())
		}
	}
	var queues []string
	for q, n := range counts {
		if n != 0 {
			queues = append(queues, q)
		}
	}
	queues = unique(append(queues, src.Queues...))
	if len(queues) == 0 {
		return
	}
	conn, err := src.Status.Broker.Dial(ctx)
	if err != nil {
		t.unseen(status.AreaBroker, err)
		return
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // the work is done
	for _, q := range queues {
		got, err := amqpx.Peek(ctx, conn, q, amqpx.PeekOptions{Limit: limit, Prefix: src.Status.Want.Prefix, Management: src.Status.Broker.Management})
		if counts[q] < 0 && missing(err) { // a name that was guessed
			continue
		}
		if err != nil {
			t.unseen(status.AreaDeadLetters, err)
			continue
		}
		t.Searched = append(t.Searched, Searched{Queue: q, Looked: len(got.Messages), Messages: max(counts[q], int64(len(got.Messages)+got.More))})
		for _, m := range got.Messages {
			if m.ID == t.ID {
				t.Lying = append(t.Lying, m)
			}
		}
		for _, n := range got.Notes {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", q, n))
		}
	}
}

func missing(err error) bool {
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && ae.Code == amqp.NotFound
}
