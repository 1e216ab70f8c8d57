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
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// Values of doctor.Unseen.Area, in addition to the doctor's own: a broker that could not be reached, dead-letter queues
// that were not examined, and the relays of a database.
const (
	AreaBroker      doctor.Area = "broker"
	AreaDeadLetters doctor.Area = "dead-letters"
	AreaRelays      doctor.Area = "relays"
)

// Source configures what Take reads.
type Source struct {
	// Want is what the broker should have; see doctor.Config. Its Roles are not used.
	Want doctor.Config
	// Broker says how to reach the broker. Its Peek is not used.
	Broker snapshot.Source
	// Tasks is the store of an application's database; nil if there is none.
	Tasks *schedule.Store
	// Peek is how many messages of each dead-letter queue and of the parked queue are read to find the reasons why they
	// are there. 0 means none; the maximum is inspect.MaxPeek. See inspect.Peek for the side effects of reading them.
	Peek int
	// Before is an earlier status; nil if there is none. With it, a queue that still has the same number of messages is
	// not read again, clocks are measured again only after 5 min, and delay queues continue to be watched. Tasks are
	// counted again only after twenty times the duration of the last count, which limits the cost for a large database
	// if Take is called repeatedly.
	Before *Status
	// Patience limits how long Take reads the broker. The limit for the database is three times as long, because
	// counting takes time; a database that does not answer at all is given up after 3 s. The default is
	// DefaultPatience. What has not answered in time is listed in Status.Unseen.
	Patience time.Duration
}

// DefaultPatience is the default of Source.Patience.
const DefaultPatience = 40 * time.Second

// closeTimeout limits closing the connection to the broker.
const closeTimeout = 2 * time.Second

// Take reads the broker and the database. It changes nothing. A broker or a database that does not answer within
// Source.Patience is listed in Status.Unseen. Take returns an error only if neither of them answers, or if the
// management API belongs to another broker (*live.ClusterError).
func Take(ctx context.Context, src Source) (Status, error) {
	src.Want.Roles = []doctor.Role{} // the user's permissions are checked by the doctor and not here
	s := seen{at: time.Now().UTC(), cfg: src.Want.WithDefaults(), looks: map[string]inspect.Peeked{}, known: map[string]Lying{}}
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
		s.unseenf(AreaBroker, "%v", brokerErr)
	}
	if tasksErr != nil {
		s.unseenf(doctor.AreaDatabase, "%v", tasksErr)
	} else if s.tasks != nil && s.snap != nil {
		s.snap.Tasks = &s.tasks.late
	}
	if s.tasks != nil && s.tasks.late.Unread != "" && s.snap == nil { // otherwise the doctor reports it
		s.unseenf(doctor.AreaDatabase, "recurring tasks and destinations of tasks: %s", s.tasks.late.Unread)
	}
	if s.tasks != nil && s.tasks.unheard != nil {
		s.unseenf(AreaRelays, "%v", s.tasks.unheard)
	}
	if err := ctx.Err(); err != nil {
		return Status{}, errors.Join(err, brokerErr, tasksErr)
	}
	if brokerErr != nil && s.tasks == nil {
		return s.nothing(), errors.Join(brokerErr, tasksErr)
	}
	return s.status(), nil
}

func (s *seen) unseenf(a doctor.Area, format string, args ...any) {
	why := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	s.unseen = append(s.unseen, doctor.Unseen{Area: a, Why: why})
}

// remeasure is how long measured clocks are reused.
const remeasure = 5 * time.Minute

// within calls look with a limit of patience.
func within(ctx context.Context, what string, patience time.Duration, look func(context.Context) error) error {
	one, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := look(one)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the %s has not answered within %v", what, patience)
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
		src.Broker.Standstill = &doctor.Standstill{}
		if before := src.Before; before != nil && before.standstill != nil {
			src.Broker.Standstill, src.Broker.Watch = before.standstill, 0 // the time since then is the watch
		}
	}
	src.Broker.Hasty = src.Broker.Hasty || src.Before != nil
	snap, err := snapshot.Take(ctx, s.cfg, src.Broker)
	if err != nil {
		return err
	}
	if clocks.clocks != nil {
		snap.Clocks, snap.Unseen = clocks.clocks, append(snap.Unseen, clocks.unseen...)
	} else {
		clocks.clocks = snap.Clocks
		clocks.unseen = slices.DeleteFunc(slices.Clone(snap.Unseen), func(u doctor.Unseen) bool { return u.Area != doctor.AreaClock })
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
		s.unseenf(AreaDeadLetters, "%v", err)
		return nil
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // nothing is left to do
	for _, q := range queues {
		s.look(ctx, conn, q, src)
	}
	return nil
}

// recall reuses the result of an earlier status for a queue with the same number of messages, and reports whether it
// could.
func (s *seen) recall(queue string, before *Status) bool {
	was := before.Parked
	for _, d := range before.Destinations {
		if d.Dead != nil && d.Dead.Queue == queue {
			was = *d.Dead
		}
	}
	if was.Queue != queue || was.Looked == 0 || was.Messages != s.count(queue).Total() {
		return false
	}
	s.known[queue] = was
	return true
}

// look reads the messages of a dead-letter queue.
func (s *seen) look(ctx context.Context, conn *amqp.Connection, queue string, src Source) {
	got, err := inspect.Peek(ctx, conn, queue, inspect.PeekOptions{Limit: min(src.Peek, inspect.MaxPeek), Prefix: s.cfg.Prefix, Management: src.Broker.Management})
	if err != nil {
		s.unseenf(AreaDeadLetters, "%v", err)
		return
	}
	s.looks[queue] = got
	q := s.snap.Live.Queues[queue] // what was read now is newer than the count
	q.Messages = int64(len(got.Messages)+got.More) + q.Unacked + q.Leaving
	s.snap.Live.Queues[queue] = q
	for _, n := range got.Notes {
		s.notes = append(s.notes, queue+": "+n)
	}
}
