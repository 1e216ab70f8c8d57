package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// letter is a message that a run is processing.
type letter struct {
	DeadLetter
	raw    amqp.Delivery
	line   int                  // line of RequeueOptions.From; 0 without From
	edited bool                 // whether its line in From was edited
	userID string               // the user id with which it is sent
	lost   string               // why it is sent without its user id; empty if it keeps it
	dest   topology.Destination // the destination to which it is sent
	fate   RequeueResult        // what is to be done with it, and then the result
}

func (l *letter) stays(why string) {
	l.fate = RequeueResult{Destination: l.dest.String(), Outcome: RequeueStayed, Why: why}
}

// decide reports whether a letter is selected, and records what to do with it.
func (r *requeue) decide(ctx context.Context, l *letter) (chosen bool, err error) {
	if l.Requeued.UnixMilli() >= r.began.UnixMilli() {
		r.rep.DiedAgain++
		return false, nil
	}
	if !r.o.Filter.matches(&l.DeadLetter, r.began) {
		return false, nil
	}
	l.dest = l.Destination
	elsewhere := r.o.To != topology.Destination{}
	if elsewhere {
		l.dest = r.o.To
	}
	l.fate = RequeueResult{Destination: l.dest.String(), Outcome: RequeueSent}
	why := r.refused[l.dest]
	switch {
	case r.o.Discard && l.Reason == "":
		l.stays("the message is not a dead letter: its headers do not show that it died")
		return true, nil
	case r.o.Discard:
		l.fate.Outcome = RequeueDiscarded
		return true, nil
	case l.Reason == ReasonUnreadable:
		why = "the message's headers cannot be read by any consumer; rabbitdelay discard removes the message"
	case l.Reason == "" && !elsewhere:
		why = "the message is not a dead letter: its headers do not show that it died; give a destination to move it anyway"
	case l.dest == topology.Destination{}:
		why = "the message's headers do not show its destination; give one"
	case l.dest.Queue == l.Queue:
		why = "the message died in this queue itself; give another destination"
	case l.Version != 0 && elsewhere:
		why = "the row of a task sets its destination; omit the destination"
	case l.Version != 0 && r.o.Tasks == nil:
		why = "the row of the message's task decides what happens to it; give the database"
	case l.Version != 0:
		if l.fate.Outcome, l.fate.Why, err = r.o.Tasks.RequeueDead(ctx, &l.DeadLetter, r.o.DryRun || l.edited); err != nil {
			return true, fmt.Errorf("task %s: %w", l.ID, err)
		}
		switch {
		case l.edited && l.fate.Outcome == RequeueRevived:
			why = "a task is revived from its row, so the edit in the file would be lost; change the row by SQL and revive the task (rabbitdelay tasks revive), or schedule another task (rabbitdelay tasks add)"
		case l.fate.Outcome == RequeueSent:
		case slices.Contains([]RequeueOutcome{RequeueRevived, RequeueRemoved, RequeueStayed}, l.fate.Outcome):
			return true, nil
		default:
			why = fmt.Sprintf("the task store returned the unknown outcome %q", l.fate.Outcome)
		}
	}
	if why != "" {
		l.stays(why)
		return true, nil
	}
	if r.o.DryRun || r.early(l) {
		err = r.exists(ctx, l)
	}
	carried := l.raw.UserId == "" && l.UserID != "" && r.early(l) // the message is delayed like a retry, so its user id stays in the header rabbitdelay-carried
	if err == nil && l.fate.Outcome == RequeueSent && !carried {
		l.userID, l.lost, err = r.users.of(ctx, &l.raw)
	}
	return true, err
}

// early reports whether a letter was parked before it was due, and has to wait.
func (r *requeue) early(l *letter) bool { return l.DueAt.After(r.c.Now()) }

const (
	existsFor   = time.Second      // how long a destination is assumed to exist after a check
	sendTimeout = 10 * time.Second // limit for sending one message
)

// exists marks a letter as staying if its destination does not exist. A client that declares would create the
// destination, and no consumer would read from it.
func (r *requeue) exists(ctx context.Context, l *letter) error {
	if time.Since(r.existed[l.dest]) < existsFor {
		return nil
	}
	asked := l.dest
	if l.dest.Queue == "" && l.dest.Exchange == "" {
		l.dest = topology.Destination{Queue: l.dest.RoutingKey} // the default exchange routes by queue name
	}
	err := r.c.Declaring(ctx, func(conn *amqp.Connection) error {
		on := wire.Channel{Conn: conn}
		defer on.Close()
		return on.Do(func(ch *amqp.Channel) error {
			if l.dest.ToExchange() {
				return ch.ExchangeDeclarePassive(l.dest.Exchange, amqp.ExchangeTopic, true, false, false, false, nil)
			}
			_, err := ch.QueueDeclarePassive(l.dest.Queue, true, false, false, false, nil)
			return err
		})
	})
	if wire.IsCode(err, amqp.NotFound) {
		r.failed++
		r.refuse(l, whyStays(err, l.dest))
		return nil
	}
	r.existed[asked] = time.Now()
	return ctx.Err() // the destination may accept messages even if the user is not allowed to examine it
}

// send sends or saves a round of messages, and removes the ones that were sent or saved from the queue.
func (r *requeue) send(ctx context.Context, round []*letter) error {
	var stop error
	if r.o.Discard {
		stop = r.save(round)
	} else {
		stop = r.sendAll(ctx, round)
	}
	gone := slices.DeleteFunc(slices.Clone(round), func(l *letter) bool { return l.fate.Outcome == RequeueStayed })
	err := r.src.acknowledge(gone)
	for _, l := range round {
		r.settle(l, true)
	}
	return errors.Join(stop, err)
}

// save calls RequeueOptions.Save for a round of messages that will be discarded.
func (r *requeue) save(round []*letter) error {
	if r.o.Save == nil {
		return nil
	}
	list := make([]SavedMessage, len(round))
	now := time.Now()
	for i, l := range round {
		list[i] = SavedMessage{Queue: r.o.Queue, Saved: now, Message: l.raw}
	}
	err := r.o.Save(list)
	if err == nil {
		return nil
	}
	for _, l := range round {
		l.stays("the message could not be saved")
		err = errors.Join(err, r.src.keep(l))
	}
	return fmt.Errorf("messages could not be saved and stay in the queue: %w", err)
}

// sendAll sends a round of messages concurrently. It returns an error if the run has to stop.
func (r *requeue) sendAll(ctx context.Context, round []*letter) (stop error) {
	errs := make([]error, len(round))
	var all sync.WaitGroup
	for i, l := range round {
		if l.fate.Outcome == RequeueSent {
			all.Go(func() {
				// Do not cancel when the run ends, because then the outcome would be unknown.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
				defer cancel()
				defer context.AfterFunc(r.c.Forced(), cancel)()
				errs[i] = r.c.Pass(ctx, r.copyOf(l))
			})
		}
	}
	all.Wait()
	for i, l := range round {
		if errs[i] == nil {
			continue
		}
		r.failed++
		why := whyStays(errs[i], l.dest)
		se, sent := errors.AsType[*amqpx.SendError](errs[i])
		switch {
		case sent && se.Tries == 0 && !errors.Is(errs[i], topology.ErrDestination), errors.Is(errs[i], amqpx.ErrClosed):
			stop = errs[i] // there is no connection or the broker blocks, so no other message can be sent either
			l.stays("not sent: " + why)
		case errors.Is(errs[i], amqpx.ErrBlocked): // the broker reported the alarm only after this message was written
			stop = errs[i]
			l.stays(why)
		case errors.Is(errs[i], amqpx.ErrMessage), sent && wire.IsCode(errs[i], amqp.PreconditionFailed):
			l.stays(why) // the message itself is the reason, so the destination may accept other messages
		default:
			r.refuse(l, why)
		}
		if err := r.src.keep(l); err != nil {
			stop = errors.Join(stop, err)
		}
	}
	return stop
}

// pace waits until n more messages may be sent.
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

// copyOf converts a letter to the message that is published in its place.
func (r *requeue) copyOf(l *letter) inner.Copy {
	p := copyOf(l.Delivery, l.dest)
	p.DeliverAt, p.Straight, p.UserId = l.DueAt, !r.early(l), l.userID
	before := &header.Properties{Expiration: l.Expiration, UserID: l.UserID, DeliveryMode: l.DeliveryMode, Timestamp: l.Timestamp, Headers: l.Headers}
	if r.o.KeepAttempts {
		before.Record(p.Own, l.Snoozes)
	} else {
		before.Record(p.Own, 0)
		p.Attempt = 1
	}
	p.Own[header.Requeued] = r.began.Add(time.Since(r.began)).UnixMilli() // by the monotonic clock, so that it is never before began
	if !l.dest.ToExchange() {
		header.Origin(p.Own, l.Exchange, l.RoutingKey)
	}
	return p
}

// refuse marks a letter as staying because its destination refuses it. All further letters for that destination in this
// run stay as well.
func (r *requeue) refuse(l *letter, why string) {
	r.refused[l.dest] = why
	l.stays(why)
}

// mayNotWrite describes a missing permission to publish. It names what the broker refused access to, because that is
// an exchange even if the destination is a queue.
func mayNotWrite(err error) string {
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		_, rest, _ := strings.Cut(e.Reason, "access to ")
		if object, _, ok := strings.Cut(rest, " in vhost "); ok {
			return "this user is not allowed to write to " + object + " (403); docs/permissions.md lists the permissions that sending again needs"
		}
	}
	return "this user is not allowed to write to the destination (403)"
}

// whyStays describes why a destination refused a message.
func whyStays(err error, dest topology.Destination) string {
	switch {
	case errors.Is(err, amqpx.ErrUnroutable) && !wire.IsCode(err, amqp.NotFound) && dest.ToExchange() && dest.Exchange != "":
		return "the exchange does not route the message to any queue, because no binding matches"
	case errors.Is(err, amqpx.ErrUnroutable), wire.IsCode(err, amqp.NotFound):
		return "the destination does not exist"
	case wire.IsCode(err, amqp.AccessRefused):
		return mayNotWrite(err)
	case errors.Is(err, amqpx.ErrNacked) && dest.ToExchange():
		return "a queue behind the exchange refuses messages because it is full or has no leader; other queues may have accepted the message, so it may be delivered twice"
	case errors.Is(err, amqpx.ErrNacked):
		return "the destination refuses messages because it is full or has no leader"
	case errors.Is(err, amqpx.ErrOutcomeUnknown) && errors.Is(err, amqpx.ErrBlocked):
		return "the broker blocks publishers because of an alarm; it may have accepted the message, so the message may be delivered twice"
	case errors.Is(err, amqpx.ErrOutcomeUnknown):
		return "the broker did not confirm the message in time; it may have accepted it, so the message may be delivered twice"
	}
	cause := err
	if se, ok := errors.AsType[*amqpx.SendError](err); ok {
		cause = se.Cause
	}
	return cause.Error()
}
