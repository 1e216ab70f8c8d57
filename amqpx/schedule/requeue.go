package schedule

import (
	"context"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

var _ amqpx.TaskStore = (*Store)(nil)

// RequeueDead decides about a task's dead or parked message, by its row; see
// amqpx.RequeueOptions.Tasks. A failed task to a queue is revived, due now, and a
// relay sends it under a new version. Of a task to an exchange the message itself
// goes back to the queue in which it died, so that no other queue gets it again. A
// message of a task that is over, or was moved, revived or sent anew meanwhile, has
// no effect any more.
func (s *Store) RequeueDead(ctx context.Context, l *amqpx.DeadLetter, dryRun bool) (amqpx.RequeueOutcome, string, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return "", "", err
	}
	for {
		row, err := look(ctx, s.db, d, l.ID, s.now(), "")
		if err != nil {
			return "", "", err
		}
		outcome, why := row.requeue(l.Version)
		if outcome != amqpx.RequeueRevived || dryRun {
			return outcome, why, nil
		}
		err = s.Revive(ctx, nil, l.ID, s.now())
		if changed := new(*StatusError); errors.As(err, changed) || errors.Is(err, ErrNotFound) {
			continue // somebody was faster
		}
		return outcome, why, err
	}
}

// requeue says what becomes of a dead message of a version.
func (f found) requeue(version int64) (outcome amqpx.RequeueOutcome, why string) {
	over := f.status == StatusDone || f.status == StatusCancelled || f.status == StatusExpired
	switch {
	case f.version == 0:
		return amqpx.RequeueStayed, "there is no row of its task: it was cleaned up, or is in another database"
	case f.version < version:
		return amqpx.RequeueStayed, "it is newer than the row of its task: the database is an older copy, or another one"
	case f.version > version:
		return amqpx.RequeueRemoved, ""
	case !f.toQueue && f.status == StatusDone: // with another queue's effect, perhaps
		return amqpx.RequeueSent, ""
	case over:
		return amqpx.RequeueRemoved, ""
	case f.toQueue && f.status == StatusFailed:
		return amqpx.RequeueRevived, ""
	case f.toQueue && f.status == StatusRunning:
		return amqpx.RequeueStayed, "a consumer is working on its task"
	}
	return amqpx.RequeueSent, ""
}
