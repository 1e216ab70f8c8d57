package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// AreaBroker is the Area of a broker that could not be reached, AreaDeadLetters of
// dead-letter queues that were not looked into.
const (
	AreaBroker      doctor.Area = "broker"
	AreaDeadLetters doctor.Area = "dead-letters"
)

// Source is what Take reads.
type Source struct {
	// Want is what the broker should have; see doctor.Config.
	Want doctor.Config
	// Broker says how the broker is reached. Its Peek is not used.
	Broker snapshot.Source
	// Tasks is the store of a business database; nil: none.
	Tasks *schedule.Store
	// Peek is how many messages of each dead-letter queue, and of the parked queue,
	// are looked at for their reasons; 0: none, at most amqpx.MaxPeek. See
	// amqpx.Peek for what a look disturbs.
	Peek int
	// Before, if given, is an earlier status: a queue that has as many messages as
	// then is not looked into again, and the clock is not measured again.
	Before *Status
}

// closeTimeout bounds the goodbye to the broker.
const closeTimeout = 2 * time.Second

// Take looks at the broker and the database. It changes nothing. A broker or a
// database that does not answer is in Status.Unseen; only if neither does, or the
// management API is another broker's (*live.ClusterError), is there an error.
func Take(ctx context.Context, src Source) (Status, error) {
	s := seen{at: time.Now(), cfg: src.Want.WithDefaults(), looks: map[string]amqpx.Peeked{}, known: map[string]Lying{}}
	brokerErr := s.broker(ctx, src)
	if _, foreign := errors.AsType[*live.ClusterError](brokerErr); foreign {
		return Status{}, brokerErr
	}
	if brokerErr != nil {
		s.unseenf(AreaBroker, "%v", brokerErr)
	}
	var tasksErr error
	if src.Tasks != nil {
		if s.tasks, tasksErr = readTasks(ctx, src.Tasks, s.at); tasksErr != nil {
			s.unseenf(doctor.AreaDatabase, "%v", tasksErr)
		} else if s.snap != nil {
			s.snap.Tasks = &s.tasks.late
		}
	}
	if err := ctx.Err(); err != nil {
		return Status{}, errors.Join(err, brokerErr, tasksErr)
	}
	if brokerErr != nil && s.tasks == nil {
		return Status{}, errors.Join(brokerErr, tasksErr)
	}
	return s.status(), nil
}

func (s *seen) unseenf(a doctor.Area, format string, args ...any) {
	why := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	s.unseen = append(s.unseen, doctor.Unseen{Area: a, Why: why})
}

func (s *seen) broker(ctx context.Context, src Source) error {
	src.Broker.Peek = 0
	if src.Broker.SkipClock = src.Broker.SkipClock || src.Before != nil; src.Broker.SkipClock {
		s.cfg.Skip = append(slices.Clip(s.cfg.Skip), doctor.AreaClock)
	}
	snap, err := snapshot.Take(ctx, s.cfg, src.Broker)
	if err != nil {
		return err
	}
	s.snap = &snap
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
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }() // the work is done
	for _, q := range queues {
		s.look(ctx, conn, q, src)
	}
	return nil
}

// recall takes over what an earlier status knows of a queue that has not changed
// since.
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

// look looks into a queue of dead letters.
func (s *seen) look(ctx context.Context, conn *amqp.Connection, queue string, src Source) {
	got, err := amqpx.Peek(ctx, conn, queue, amqpx.PeekOptions{Limit: min(src.Peek, amqpx.MaxPeek), Prefix: s.cfg.Prefix, Management: src.Broker.Management})
	if err != nil {
		s.unseenf(AreaDeadLetters, "%v", err)
		return
	}
	s.looks[queue] = got
	for _, n := range got.Notes {
		s.notes = append(s.notes, queue+": "+n)
	}
}
