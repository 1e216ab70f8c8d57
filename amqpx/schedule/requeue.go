package schedule

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

var _ inspect.TaskStore = (*Store)(nil)

// RequeueDead decides from a task's row what to do with a dead or parked message of the task, and revives the task if
// that is the decision; see inspect.RequeueOptions.Tasks.
//
// A failed task that was sent to a queue is revived and due immediately, and a relay sends it with a new version. If
// the task is pending or was sent to an exchange, the message is returned to the queue in which it was dead-lettered,
// so that no other queue receives it again. A message is removed if it would have no effect, because its task has
// finished, or was rescheduled, revived or replaced in the meantime. A message stays where it is if its task has no row
// or a row with an older version, if a LeaseHandler is working on a task that was sent to a queue, or if the task
// cannot be revived because another task with its unique key is pending. With dryRun, RequeueDead changes nothing.
func (s *Store) RequeueDead(ctx context.Context, l *inspect.DeadLetter, dryRun bool) (inspect.RequeueOutcome, string, error) {
	c, err := s.conn(ctx, NoTx)
	if err != nil {
		return "", "", err
	}
	for {
		row, err := c.Find(ctx, l.ID, s.nowOn(ctx, c).UnixMilli(), rows.Unlocked)
		if err != nil {
			return "", "", err
		}
		outcome, why := requeue(row, l.Version)
		if outcome != inspect.RequeueRevived || dryRun {
			return outcome, why, nil
		}
		err = s.Revive(ctx, NoTx, l.ID, s.nowOn(ctx, c))
		if changed := new(*StatusError); errors.As(err, changed) || errors.Is(err, ErrNotFound) {
			continue // another process has changed the task
		}
		if taken, ok := errors.AsType[*uniqueError](err); ok {
			return inspect.RequeueStayed, taken.Error(), nil
		}
		return outcome, why, err
	}
}

// requeue decides what to do with a dead message of the given version.
func requeue(f rows.Found, version int64) (outcome inspect.RequeueOutcome, why string) {
	over := f.Status == rows.Done || f.Status == rows.Cancelled || f.Status == rows.Expired
	switch {
	case f.Version == 0:
		return inspect.RequeueStayed, "the message's task has no row: it was purged, or is in another database"
	case f.Version < version:
		return inspect.RequeueStayed, "the message is newer than the row of its task: the database is an older copy, or a different one"
	case f.Version > version:
		return inspect.RequeueRemoved, ""
	case !f.ToQueue && f.Status == rows.Done: // perhaps only another queue's effect has been committed
		return inspect.RequeueSent, ""
	case over:
		return inspect.RequeueRemoved, ""
	case f.ToQueue && f.Status == rows.Failed:
		return inspect.RequeueRevived, ""
	case f.ToQueue && f.Status == rows.Running:
		return inspect.RequeueStayed, "a consumer is working on the message's task"
	}
	return inspect.RequeueSent, ""
}
