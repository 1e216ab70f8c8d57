package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
	public "github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Values of doctor.Unchecked.Area, in addition to the doctor's own: a broker that could not be reached, dead-letter
// queues that were not examined, and the relays of a database.
const (
	AreaBroker      doctor.Area = "broker"
	AreaDeadLetters doctor.Area = "dead-letters"
	AreaRelays      doctor.Area = "relays"
)

// Source configures what Take reads.
type Source struct {
	// Want is what the broker should have; see doctor.Config. Its Roles are not used.
	Want doctor.Config
	// Broker specifies how to reach the broker. Its Peek is not used.
	Broker snapshot.Source
	// Tasks is the store of an application's database; nil if there is none.
	Tasks *taskview.Store
	// Peek is how many messages of each dead-letter queue and of the parked queue are read to find the reasons why they
	// are there. 0 means none; the maximum is inspect.MaxPeek. See inspect.Peek for the side effects of reading them.
	Peek int
	// Before is an earlier status; nil if there is none. With it, a queue that still has the same number of messages is
	// not read again, clocks are measured again only after 5 min, and delay queues continue to be watched. Tasks are
	// counted again only after twenty times the duration of the last count, which limits the cost for a large database
	// if Take is called repeatedly.
	Before *Status
	// Patience limits how long Take reads the broker. The limit for the database is three times as long, because counting
	// takes time, but Take waits only 3 s for a database that does not answer at all. The default is DefaultPatience.
	// Status.Unchecked lists everything that has not answered in time.
	Patience time.Duration
}

// DefaultPatience is the default of Source.Patience.
const DefaultPatience = 40 * time.Second

// closeTimeout limits closing the connection to the broker.
const closeTimeout = 2 * time.Second

// Take reads the broker and the database. It changes nothing. A broker or a database that does not answer within
// Source.Patience is listed in Status.Unchecked. Take returns an error only if neither of them answers, or if the
// management API belongs to another broker (*live.ClusterError).
func Take(ctx context.Context, src Source) (Status, error) {
	src.Want.Roles = []doctor.Role{} // the user's permissions are checked by the doctor and not here
	s := seen{at: time.Now().UTC(), cfg: src.Want.WithDefaults(), looks: map[string]inspect.Peeked{}, known: map[string]DeadLetters{}}
	var tasks *Tasks
	tasksErr, read := error(nil), make(chan struct{})
	at, patience := s.at, cmp.Or(src.Patience, DefaultPatience)
	go func() {
		defer close(read)
		tasksErr = within(ctx, "database", 3*patience, func(ctx context.Context) (err error) { tasks, err = readTasks(ctx, src, at); return err })
	}()
	brokerErr := within(ctx, "broker", patience, func(ctx context.Context) error { return s.broker(ctx, src) })
	<-read
	s.tasks = tasks
	if _, foreign := errors.AsType[*live.ClusterError](brokerErr); foreign {
		return Status{}, brokerErr
	}
	if brokerErr != nil {
		s.uncheckedf(AreaBroker, "%v", brokerErr)
	}
	if tasksErr != nil {
		s.uncheckedf(doctor.AreaDatabase, "%v", tasksErr)
	} else if s.tasks != nil && s.snap != nil {
		s.snap.Tasks = &s.tasks.late
		s.recount(ctx, src)
	}
	if s.tasks != nil && s.tasks.late.Unread != "" && s.snap == nil { // with a snapshot of the broker, the doctor reports it
		s.uncheckedf(doctor.AreaDatabase, "recurring tasks and destinations of tasks: %s", s.tasks.late.Unread)
	}
	if s.tasks != nil && s.tasks.unheard != nil {
		s.uncheckedf(AreaRelays, "%v", s.tasks.unheard)
	}
	if err := ctx.Err(); err != nil {
		return Status{}, errors.Join(err, brokerErr, tasksErr)
	}
	if brokerErr != nil && s.tasks == nil {
		return s.nothing(), errors.Join(brokerErr, tasksErr)
	}
	return s.status(), nil
}

// recount verifies that messages are missing, with a second count, or with an earlier status in which messages were
// missing too. If none were missing in the earlier status, the messages count as present.
func (s *seen) recount(ctx context.Context, src Source) {
	n, _ := doctor.Missing(s.cfg, *s.snap)
	s.suspect = n > 0
	switch {
	case n == 0:
	case src.Before == nil:
		Recount(ctx, s.cfg, src.Broker.Management, s.snap)
	case !src.Before.suspect:
		s.snap.Tasks.Recounted = s.snap.Tasks.Ahead
	}
}

func (s *seen) uncheckedf(a doctor.Area, format string, args ...any) {
	why := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	s.unchecked = append(s.unchecked, doctor.Unchecked{Area: a, Why: why})
}

// remeasure is how long measured clocks are reused.
const remeasure = 5 * time.Minute

// within calls look with the timeout patience. If look exceeds the timeout, the error says what has not answered.
func within(ctx context.Context, what string, patience time.Duration, look func(context.Context) error) error {
	one, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := look(one)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer from the %s within %v", what, patience)
	}
	return err
}

func (s *seen) broker(ctx context.Context, src Source) error {
	src.Broker.Peek = 0
	clocks := measured{at: s.at}
	switch before := src.Before; {
	case src.Broker.SkipClock:
		s.cfg.Skip = append(slices.Clip(s.cfg.Skip), doctor.AreaClock)
	case before != nil && len(before.clocks.clocks) > 0 && s.at.Sub(before.clocks.at) < remeasure:
		clocks, src.Broker.SkipClock = before.clocks, true
	}
	if src.Broker.Watch > 0 {
		src.Broker.Standstill = &doctor.StallWatch{}
		if before := src.Before; before != nil && before.standstill != nil {
			src.Broker.Standstill, src.Broker.Watch = before.standstill, 0 // continue the watch of the earlier status instead of waiting
		}
	}
	src.Broker.Hasty = src.Broker.Hasty || src.Before != nil
	snap, err := snapshot.Take(ctx, s.cfg, src.Broker)
	if err != nil {
		return err
	}
	if clocks.clocks != nil {
		snap.Clocks, snap.Unchecked = clocks.clocks, append(snap.Unchecked, clocks.unchecked...)
	} else {
		clocks.clocks = snap.Clocks
		clocks.unchecked = slices.DeleteFunc(slices.Clone(snap.Unchecked), func(u doctor.Unchecked) bool { return u.Area != doctor.AreaClock })
	}
	s.snap, s.clocks, s.standstill = &snap, clocks, src.Broker.Standstill
	queues := s.deadLetterQueues()
	if src.Before != nil {
		queues = slices.DeleteFunc(queues, func(q string) bool { return s.recall(q, src.Before) })
	}
	if src.Peek <= 0 || len(queues) == 0 {
		return nil
	}
	conn, err := src.Broker.Dial(ctx)
	if err != nil {
		s.uncheckedf(AreaDeadLetters, "%v", err)
		return nil
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // nothing is left to do
	if !snap.Live.BindingsKnown {
		src.Broker.Management = nil // it did not answer just now, and a request for each queue would have to wait
	}
	for _, q := range queues {
		s.look(ctx, conn, q, src)
	}
	return nil
}

// recall reuses the result of an earlier status for a queue with the same number of messages. It returns false if there
// is no such result.
func (s *seen) recall(queue string, before *Status) bool {
	was := before.Parked
	for _, d := range before.Destinations {
		if d.Dead != nil && d.Dead.Queue == queue {
			was = *d.Dead
		}
	}
	if was.Queue != queue || was.Sampled == 0 || was.Messages != s.count(queue).Total() {
		return false
	}
	s.known[queue] = was
	return true
}

// look peeks at the first messages of a dead-letter queue, and updates the number of messages in it.
func (s *seen) look(ctx context.Context, conn *amqp.Connection, queue string, src Source) {
	have := s.snap.Live.Queues[queue]
	if have.ArgumentsKnown && (have.Type == topology.Quorum || have.Type == topology.Classic) && plan.ParseVersion(s.snap.Version).AtLeast(4, 3, 0) {
		// Peek would ask it only for the queue's type, which is known here, and before 4.3 for the delivery limit.
		src.Broker.Management = nil
	}
	got, err := inspect.Peek(ctx, conn, queue, inspect.PeekOptions{Limit: min(src.Peek, inspect.MaxPeek), Prefix: s.cfg.Prefix, Management: live.Public[*public.Management](src.Broker.Management)})
	if err != nil {
		s.uncheckedf(AreaDeadLetters, "%v", err)
		return
	}
	s.looks[queue] = got
	q := s.snap.Live.Queues[queue] // the queue was read after it was counted
	q.Messages = int64(len(got.Messages)+got.More) + q.Unacked + q.Leaving
	s.snap.Live.Queues[queue] = q
	for _, n := range got.Notes {
		s.notes = append(s.notes, queue+": "+n)
	}
}
