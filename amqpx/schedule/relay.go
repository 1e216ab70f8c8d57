package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
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

// answered lets do ask the database for as long as a lease, and at least a minute:
// what is claimed after that may be another's by now. It gives up a connection over
// which no answer comes, because the server hangs or the network drops packets;
// nothing else would tell, for as long as TCP keeps such a connection.
func (s *Store) answered(ctx context.Context, do func(ctx context.Context) error) error {
	longest := max(s.cfg.Lease, time.Minute)
	bounded, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	err := do(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("the database did not answer within %v: %w", longest, err)
	}
	return err
}

// Ping returns nil where the database answers a statement that reads nothing within
// patience, and else why not.
func (s *Store) Ping(ctx context.Context, patience time.Duration) error {
	return sqldb.Answers(ctx, s.db, patience)
}

// step claims one batch, publishes it and marks it. It returns how many were
// claimed and how many of those were sent. Once claimed, a batch is carried to
// its end also when ctx ends, so that a clean stop leaves no task under a lease;
// a crash leaves them until the lease ends, and they are published again.
func (s *Store) step(ctx context.Context) (found, sent int, err error) {
	var list []*claimed
	err = s.answered(ctx, func(ctx context.Context) error {
		if err := s.settleHeld(ctx, 1); err != nil {
			return err
		}
		list, err = s.take(ctx)
		return err
	})
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	sent, err = s.launch(context.WithoutCancel(ctx), toSend, list)
	return len(list), sent, err
}
