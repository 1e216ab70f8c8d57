package schedule

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// teller is a Sender that tells the outcome of each message as soon as it is
// known. *amqpx.Client is one.
type teller interface {
	SendEach(ctx context.Context, msgs []amqpx.Message, outcome func(i int, err error)) error
}

var _ teller = (*amqpx.Client)(nil)

// publish sends the tasks, and tells of each whether it was confirmed.
func (s *Store) publish(ctx context.Context, list []*claimed, tell func(*claimed, error)) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishTimeout)
	defer cancel()
	good := make([]*claimed, 0, len(list))
	for _, c := range list {
		if c.bad != nil {
			tell(c, c.bad)
		} else {
			good = append(good, c)
		}
	}
	s.send(ctx, good, tell)
}

// send publishes. A message that is not possible makes the sender refuse its
// whole batch before anything is sent; halving finds it.
func (s *Store) send(ctx context.Context, list []*claimed, tell func(*claimed, error)) {
	if len(list) == 0 {
		return
	}
	offset := time.Duration(s.offset.Load())
	msgs := make([]amqpx.Message, len(list))
	for i, c := range list {
		msgs[i] = c.message()
		msgs[i].ClockOffset = offset
	}
	err := s.sendEach(ctx, msgs, func(i int, err error) { tell(list[i], err) })
	if err == nil {
		return
	}
	if len(list) > 1 && judge(err) != broker {
		half := len(list) / 2
		s.send(ctx, list[:half], tell)
		s.send(ctx, list[half:], tell)
		return
	}
	for _, c := range list {
		tell(c, err)
	}
}

// sendEach tells the outcome of each message, or returns the error of the whole
// batch, of which nothing was sent.
func (s *Store) sendEach(ctx context.Context, msgs []amqpx.Message, outcome func(i int, err error)) error {
	if t, ok := s.sender.(teller); ok {
		return t.SendEach(ctx, msgs, outcome)
	}
	err := s.sender.SendBatch(ctx, msgs)
	be, ok := errors.AsType[*amqpx.BatchError](err)
	if err != nil && !ok {
		return err
	}
	for i := range msgs {
		err = nil
		if ok && be.Failed[i] != nil {
			err = be.Failed[i]
		}
		outcome(i, err)
	}
	return nil
}

// verdict is what a failed send says about its task.
type verdict int

const (
	broker      verdict = iota // nothing: it may concern any message at this moment
	destination                // its destination does not take it now
	impossible                 // it can never be sent
)

func judge(err error) verdict {
	var key *topology.KeyError
	switch {
	case errors.Is(err, ErrMaxSends), errors.Is(err, amqpx.ErrMessage), errors.Is(err, topology.ErrDelay), isRowError(err), errors.As(err, &key):
		return impossible
	case errors.Is(err, topology.ErrDestination), errors.Is(err, amqpx.ErrNacked), errors.Is(err, amqpx.ErrUnroutable):
		return destination
	}
	if gone(err) {
		return destination
	}
	return broker
}

// gone reports whether the destination is missing or forbidden to the user,
// which, unlike a full queue, does not pass by itself.
func gone(err error) bool {
	if errors.Is(err, topology.ErrDestination) {
		return true
	}
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && (ae.Code == amqp.NotFound || ae.Code == amqp.AccessRefused)
}

// reason leaves out the message id, so that equal failures have equal texts.
func reason(err error) error {
	if se, ok := errors.AsType[*amqpx.SendError](err); ok {
		return errors.New("not confirmed: " + se.Cause.Error())
	}
	return err
}
