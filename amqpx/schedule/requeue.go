package schedule

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

var _ inspect.TaskStore = (*Store)(nil)

// RequeueDead decides about a task's dead or parked message, by its row; see
// inspect.RequeueOptions.Tasks. A failed task to a queue is revived, due now, and a
// relay sends it under a new version. Of a task to an exchange the message itself
// goes back to the queue in which it died, so that no other queue gets it again. A
// message of a task that is over, or was moved, revived or sent anew meanwhile, has
// no effect any more.
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
			continue // somebody was faster
		}
		if taken, ok := errors.AsType[*UniqueError](err); ok {
			return inspect.RequeueStayed, taken.Error(), nil
		}
		return outcome, why, err
	}
}

// requeue decides what becomes of a dead message of a version.
func requeue(f rows.Found, version int64) (outcome inspect.RequeueOutcome, why string) {
	over := f.Status == rows.Done || f.Status == rows.Cancelled || f.Status == rows.Expired
	switch {
	case f.Version == 0:
		return inspect.RequeueStayed, "there is no row of its task: it was cleaned up, or is in another database"
	case f.Version < version:
		return inspect.RequeueStayed, "it is newer than the row of its task: the database is an older copy, or another one"
	case f.Version > version:
		return inspect.RequeueRemoved, ""
	case !f.ToQueue && f.Status == rows.Done: // with another queue's effect, perhaps
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
