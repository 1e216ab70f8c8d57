package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// letter is a message on its way through a run.
type letter struct {
	DeadLetter
	raw  amqp.Delivery
	dest topology.Destination // where it goes
	fate fate
}

// fate is what becomes of a letter.
type fate struct {
	outcome RequeueOutcome
	dest    string
	why     string
}

func (l *letter) stays(why string) {
	l.fate = fate{RequeueStayed, l.dest.String(), why}
}

// decide says whether a letter is chosen, and what is to become of it.
func (r *requeue) decide(ctx context.Context, l *letter) (chosen bool, err error) {
	if l.Requeued.UnixMilli() >= r.began.UnixMilli() {
		r.rep.Again++
		return false, nil
	}
	if !r.o.Filter.Matches(&l.DeadLetter, r.began) {
		return false, nil
	}
	l.dest = l.Destination
	elsewhere := r.o.To != topology.Destination{}
	if elsewhere {
		l.dest = r.o.To
	}
	l.fate = fate{outcome: RequeueSent, dest: l.dest.String()}
	switch {
	case r.o.Discard:
		l.fate.outcome = RequeueDiscarded
		return true, nil
	case l.Reason == ReasonUnreadable:
		l.stays("its headers cannot be read, wherever it goes; rabbitdelay discard removes it")
		return true, nil
	case l.Reason == "" && !elsewhere:
		l.stays("it is no dead letter: nothing tells that it died; give a destination to move it all the same")
		return true, nil
	case l.dest == topology.Destination{}:
		l.stays("nothing tells where it belongs; give a destination")
		return true, nil
	case l.dest.Queue == r.o.Queue:
		l.stays("it died in this very queue; give another destination")
		return true, nil
	case l.Version != 0 && elsewhere:
		l.stays("a task goes where its row says; leave the destination out")
		return true, nil
	case l.Version != 0 && r.o.Tasks == nil:
		l.stays("the row of its task decides; give the database")
		return true, nil
	case l.Version != 0:
		if l.fate.outcome, l.fate.why, err = r.o.Tasks.RequeueDead(ctx, &l.DeadLetter, r.o.DryRun); err != nil {
			return true, fmt.Errorf("task %s: %w", l.ID, err)
		}
		switch l.fate.outcome {
		case RequeueSent:
		case RequeueRevived, RequeueRemoved, RequeueStayed:
			return true, nil
		default:
			l.stays(fmt.Sprintf("the task store gave the unknown outcome %q", l.fate.outcome))
			return true, nil
		}
	}
	if why := r.refused[l.dest]; why != "" {
		l.stays(why)
		return true, nil
	}
	if r.o.DryRun || r.early(l) {
		return true, r.exists(ctx, l)
	}
	return true, nil
}

// early tells whether a letter was parked before it was due, and has to wait.
func (r *requeue) early(l *letter) bool { return l.DueAt.After(time.Now()) }

// existsFor is how long a destination that was there is taken to be.
const existsFor = time.Second

// exists lets a letter stay whose destination is not there. A client that declares
// would create it, and nobody would read it.
func (r *requeue) exists(ctx context.Context, l *letter) error {
	if time.Since(r.existed[l.dest]) < existsFor {
		return nil
	}
	asked := l.dest
	if l.dest.Queue == "" && l.dest.Exchange == "" {
		l.dest = topology.Destination{Queue: l.dest.RoutingKey} // the default exchange
	}
	sess, err := r.c.pub.wait(ctx, false)
	if err != nil {
		return err
	}
	err = r.c.onDeclareConn(ctx, sess, false, func(conn *amqp.Connection) error {
		on := oneChannel{conn: conn}
		defer on.close()
		return on.do(func(ch *amqp.Channel) error {
			if l.dest.ToExchange() {
				return exchangeExists(ch, l.dest.Exchange)
			}
			return queueExists(ch, l.dest.Queue)
		})
	})
	if isCode(err, amqp.NotFound) {
		r.refuse(l, whyStays(err, l.dest))
		return nil
	}
	r.existed[asked] = time.Now()
	return ctx.Err() // what may not be looked at may still be sent to
}

// send sends a round, side by side, and takes those off the queue that went.
func (r *requeue) send(ctx context.Context, round []*letter) error {
	errs := make([]error, len(round))
	var all sync.WaitGroup
	for i, l := range round {
		if l.fate.outcome == RequeueSent {
			all.Go(func() { errs[i] = r.sendOne(ctx, l) })
		}
	}
	all.Wait()
	var stop error
	for i, l := range round {
		if errs[i] == nil {
			continue
		}
		why := whyStays(errs[i], l.dest)
		se, sent := errors.AsType[*SendError](errs[i])
		switch {
		case sent && se.Tries == 0 && !errors.Is(errs[i], topology.ErrDestination), errors.Is(errs[i], ErrClosed):
			stop = errs[i] // no connection, or a broker that blocks: nothing else would go
			l.stays("not sent: " + why)
		case errors.Is(errs[i], ErrMessage), sent && isCode(errs[i], amqp.PreconditionFailed):
			l.stays(why) // the message's own trouble
		default:
			r.refuse(l, why)
		}
		if err := r.keep(l.raw); err != nil {
			stop = errors.Join(stop, err)
		}
	}
	err := r.acknowledge(round)
	for _, l := range round {
		r.settle(l)
	}
	return errors.Join(stop, err)
}

// pace waits until n more messages may go.
func (r *requeue) pace(ctx context.Context, n int) error {
	if r.o.Rate <= 0 {
		return nil
	}
	if now := time.Now(); r.next.Before(now) {
		r.next = now
	}
	t := time.NewTimer(time.Until(r.next))
	defer t.Stop()
	r.next = r.next.Add(time.Duration(float64(n) / r.o.Rate * float64(time.Second)))
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendOne sends a letter. It does not end with the run: an outcome that nobody
// waits for would be one that nobody knows.
func (r *requeue) sendOne(ctx context.Context, l *letter) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	defer context.AfterFunc(r.c.forced, cancel)()
	way := straightTo(l.dest)
	if r.early(l) {
		way = nil
	}
	return r.c.sendOne(ctx, r.message(l), way)
}

// message is a letter as it is sent.
func (r *requeue) message(l *letter) Message {
	m := l.message()
	m.Queue, m.Exchange, m.RoutingKey = l.dest.Queue, l.dest.Exchange, l.dest.RoutingKey
	m.DeliverAt = l.DueAt
	if m.ID == "" {
		m.ID = newID(time.Now())
	}
	m.own = amqp.Table{}
	l.record(m.own)
	if r.o.KeepAttempts {
		m.Attempt = l.Attempt
	} else {
		delete(m.own, HeaderSnoozes)
	}
	m.own[HeaderRequeued] = r.began.Add(time.Since(r.began)).UnixMilli() // not before began, whatever the clock does
	if !l.dest.ToExchange() {
		l.origin(m.own)
	}
	return m
}

// refuse lets a letter stay because its destination takes none, and with it all
// others of this run.
func (r *requeue) refuse(l *letter, why string) {
	r.refused[l.dest] = why
	l.stays(why)
}

// whyStays says in words why a destination took no message.
func whyStays(err error, dest topology.Destination) string {
	switch {
	case errors.Is(err, ErrUnroutable) && !isCode(err, amqp.NotFound) && dest.ToExchange() && dest.Exchange != "":
		return "the exchange routes it to no queue: nothing is bound for it"
	case errors.Is(err, ErrUnroutable), isCode(err, amqp.NotFound):
		return "the destination does not exist"
	case isCode(err, amqp.AccessRefused):
		return "this user may not write there (403)"
	case errors.Is(err, ErrNacked) && dest.ToExchange():
		return "a queue behind the exchange refuses messages: it is full, or has no leader; others may have taken it, and it may come twice"
	case errors.Is(err, ErrNacked):
		return "the destination refuses messages: it is full, or has no leader"
	case errors.Is(err, ErrOutcomeUnknown):
		return "no confirm came in time; it may have been taken, and come twice"
	}
	cause := err
	if se, ok := errors.AsType[*SendError](err); ok {
		cause = se.Cause
	}
	return cause.Error()
}
