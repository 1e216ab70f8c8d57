package schedule

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

var _ inspect.TaskStore = (*Store)(nil)

// RequeueDead decides what to do with the dead or parked message of a task, from the task's row; see
// inspect.RequeueOptions.Tasks. A failed task to a queue is revived, due now, and a relay sends it with
// a new version. The message of a task to an exchange is returned to the queue in which it was
// dead-lettered, so that no other queue gets it again. A message whose task has finished, or was
// moved, revived or replaced in the meantime, would have no effect and is removed. With dryRun,
// RequeueDead changes nothing.
func (s *Store) RequeueDead(ctx context.Context, l *inspect.DeadLetter, dryRun bool) (inspect.RequeueOutcome, string, error) {
	c, err := s.conn(ctx, NoTx)
	if err != nil {
		return "", "", err
	}
	for {
		row, err := c.Find(ctx, l.ID, s.nowIn(ctx, NoTx).UnixMilli(), rows.Unlocked)
		if err != nil {
			return "", "", err
		}
		outcome, why := requeue(row, l.Version)
		if outcome != inspect.RequeueRevived || dryRun {
			return outcome, why, nil
		}
		err = s.Revive(ctx, NoTx, l.ID, s.nowIn(ctx, NoTx))
		if changed := new(*StatusError); errors.As(err, changed) || errors.Is(err, ErrNotFound) {
			continue // another process has changed the task
		}
		if taken, ok := errors.AsType[*UniqueError](err); ok {
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
		return inspect.RequeueStayed, "there is no row of its task: it was cleaned up, or is in another database"
	case f.Version < version:
		return inspect.RequeueStayed, "it is newer than the row of its task: the database is an older copy, or another one"
	case f.Version > version:
		return inspect.RequeueRemoved, ""
	case !f.ToQueue && f.Status == rows.Done: // possibly with the effect of another queue only
		return inspect.RequeueSent, ""
	case over:
		return inspect.RequeueRemoved, ""
	case f.ToQueue && f.Status == rows.Failed:
		return inspect.RequeueRevived, ""
	case f.ToQueue && f.Status == rows.Running:
		return inspect.RequeueStayed, "a consumer is working on its task"
	}
	return inspect.RequeueSent, ""
}
