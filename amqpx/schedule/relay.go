package schedule

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Pauses before a task that could not be sent is tried again: the first, and the
// longest when the fault is its destination's, or may be the whole broker's.
const (
	firstPause              = time.Second
	longestDestinationPause = time.Minute
	longestBrokerPause      = 15 * time.Second
)

// backoff doubles the pause with every failure before.
func backoff(failures int, longest time.Duration) time.Duration {
	return min(firstPause<<min(max(failures, 0), 20), longest)
}

// markTimeout bounds the statements that settle a batch.
const markTimeout = 15 * time.Second

// step claims one batch, publishes it and marks it. It returns how many were
// claimed and how many of those were sent. Once claimed, a batch is carried to
// its end also when ctx ends, so that a clean stop leaves no task under a lease;
// a crash leaves them until the lease ends, and they are published again.
func (s *Store) step(ctx context.Context, k kind) (found, sent int, err error) {
	if err := s.settleHeld(ctx, 1); err != nil {
		return 0, 0, err
	}
	list, err := s.claim(ctx, k)
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	ctx = context.WithoutCancel(ctx)
	ok, failures := s.publish(ctx, list)
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	err = s.markSent(ctx, ok)
	if err == nil && len(ok) > 0 && s.cfg.Hooks.Relayed != nil {
		s.cfg.Hooks.Relayed(len(ok), k == toResend)
	}
	return len(list), len(ok), errors.Join(err, s.settleFailures(ctx, failures))
}

// publish sends the tasks and tells which were confirmed, and why the others
// were not.
func (s *Store) publish(ctx context.Context, list []*claimed) (ok []*claimed, failed map[*claimed]error) {
	failed = map[*claimed]error{}
	good := make([]*claimed, 0, len(list))
	for _, c := range list {
		if c.bad != nil {
			failed[c] = c.bad
		} else {
			good = append(good, c)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishTimeout)
	defer cancel()
	s.send(ctx, good, failed)
	for _, c := range good {
		if failed[c] == nil {
			ok = append(ok, c)
		}
	}
	return ok, failed
}

// send publishes and enters failures. A message that is not possible makes the
// sender refuse its whole batch before anything is sent; halving finds it.
func (s *Store) send(ctx context.Context, list []*claimed, failed map[*claimed]error) {
	if len(list) == 0 {
		return
	}
	msgs := make([]amqpx.Message, len(list))
	for i, c := range list {
		msgs[i] = c.message()
	}
	err := s.sender.SendBatch(ctx, msgs)
	if err == nil {
		return
	}
	if be, ok := errors.AsType[*amqpx.BatchError](err); ok {
		for i, f := range be.Failed {
			if i >= 0 && i < len(list) {
				failed[list[i]] = f
			}
		}
		return
	}
	if len(list) > 1 && judge(err) != broker {
		half := len(list) / 2
		s.send(ctx, list[:half], failed)
		s.send(ctx, list[half:], failed)
		return
	}
	for _, c := range list {
		failed[c] = err
	}
}

// verdict is what a failed send says about its task.
type verdict int

const (
	broker      verdict = iota // nothing: it may concern any message at this moment
	destination                // its destination does not take it now
	impossible                 // it can never be sent
)

func judge(err error) verdict {
	var he *headersError
	var key *topology.KeyError
	switch {
	case errors.Is(err, amqpx.ErrMessage), errors.Is(err, topology.ErrDelay), errors.As(err, &he), errors.As(err, &key):
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

// settleFailures gives failed tasks back, or ends them. Tasks with the same
// fate share a statement.
func (s *Store) settleFailures(ctx context.Context, failures map[*claimed]error) error {
	type fate struct {
		cause  string
		failed bool
		pause  time.Duration
	}
	groups := map[fate][]*claimed{}
	for c, err := range failures {
		f := fate{cause: text(reason(err)), pause: backoff(c.failures, longestBrokerPause)}
		switch judge(err) {
		case impossible:
			f.failed = true
		case destination:
			f.pause = backoff(c.failures, longestDestinationPause)
			f.failed = gone(err) && c.failures+1 >= s.cfg.MaxSendFailures
		}
		groups[f] = append(groups[f], c)
	}
	var errs []error
	for f, list := range groups {
		if f.failed {
			errs = append(errs, s.fail(ctx, list, f.cause))
		} else {
			errs = append(errs, s.release(ctx, list, f.cause, f.pause))
		}
		s.log.Warn("tasks could not be sent", zap.Int("tasks", len(list)), zap.String("first", list[0].ID), zap.Bool("failed", f.failed), zap.String("error", f.cause))
		if s.cfg.Hooks.SendFailed != nil {
			for _, c := range list {
				s.cfg.Hooks.SendFailed(c.Task, failures[c], f.failed)
			}
		}
	}
	return errors.Join(errs...)
}

// reason leaves out the message id, so that equal failures have equal texts.
func reason(err error) error {
	if se, ok := errors.AsType[*amqpx.SendError](err); ok {
		return errors.New("not confirmed: " + se.Cause.Error())
	}
	return err
}
