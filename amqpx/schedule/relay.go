package schedule

import (
	"context"
	"time"
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
func (s *Store) step(ctx context.Context) (found, sent int, err error) {
	if err := s.settleHeld(ctx, 1); err != nil {
		return 0, 0, err
	}
	list, err := s.take(ctx)
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	sent, err = s.launch(context.WithoutCancel(ctx), toSend, list)
	return len(list), sent, err
}
