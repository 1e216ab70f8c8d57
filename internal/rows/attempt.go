package rows

import (
	"context"
	"database/sql"
)

// EffectKey is the key of a row in rabbitdelay_effects.
type EffectKey struct {
	Task             string
	Created, Version int64
	Queue            string
}

// effectRow is the WHERE clause for the row of an EffectKey.
const effectRow = " WHERE task_id = ? AND created_at = ? AND version = ? AND queue = ?"

func (k EffectKey) args() []any { return []any{k.Task, k.Created, k.Version, k.Queue} }

// Record contains the columns of a rabbitdelay_effects row that describe earlier attempts.
type Record struct {
	Attempts int
	Token    string // the token of an attempt without an outcome; empty if there is none
	Lease    int64
	Done     bool
}

// LockRecord locks and reads the row of a key. It inserts the row if there is none.
func (c Conn) LockRecord(ctx context.Context, k EffectKey, now int64) (r Record, err error) {
	insert := c.insertMissing("rabbitdelay_effects (task_id, created_at, version, queue, updated_at) VALUES (?, ?, ?, ?, ?)")
	if _, err := c.exec(ctx, insert, append(k.args(), now)...); err != nil {
		return r, err
	}
	var done sql.NullInt64
	err = c.one(ctx, "SELECT attempts, lease_token, lease_until, done_at FROM rabbitdelay_effects"+effectRow+c.lock(Exclusive), k.args(), &r.Attempts, &r.Token, &r.Lease, &done)
	r.Done = done.Valid
	return r, err
}

// BeginAttempt records an attempt with its token and the end of its lease, which is 0 for an attempt without a lease.
func (c Conn) BeginAttempt(ctx context.Context, k EffectKey, number int, token string, lease, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_effects SET attempts = ?, lease_token = ?, lease_until = ?, updated_at = ?"+effectRow, append([]any{number, token, lease, now}, k.args()...)...)
	return err
}

// EndAttempt records that the attempt with the token has had an outcome, and sets the number of attempts.
func (c Conn) EndAttempt(ctx context.Context, k EffectKey, number int, token string) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_effects SET attempts = ?, lease_token = '', lease_until = 0"+effectRow+" AND lease_token = ?",
		append(append([]any{number}, k.args()...), token)...)
	return err
}

// RenewLease extends the lease of the attempt with the token until the given time. It returns false if that attempt no
// longer holds the lease.
func (c Conn) RenewLease(ctx context.Context, k EffectKey, token string, until int64) (bool, error) {
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET lease_until = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL",
		append(append([]any{until}, k.args()...), token)...)
}

// CompleteLease records the effect of work under a lease. It returns false if the attempt with the token no longer
// holds the lease.
func (c Conn) CompleteLease(ctx context.Context, k EffectKey, token string, now int64) (bool, error) {
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET done_at = ?, lease_until = 0, updated_at = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL",
		append(append([]any{now, now}, k.args()...), token)...)
}

// StartRunning marks a task as running if it passes the fence. If the task was sent to an exchange, the handlers of
// other queues may already have succeeded or failed.
func (c Conn) StartRunning(ctx context.Context, f Fence, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'running', finished_at = NULL, updated_at = ? WHERE "+fenced+
		" AND (status = 'pending' OR status = 'failed' AND exchange <> '') AND "+c.unexpired(now), append([]any{now}, f.args()...)...)
	return err
}

// EndRunning marks a task as done when its work under a lease is complete. The task may be pending again if the lease
// has ended and no other attempt has started since.
func (c Conn) EndRunning(ctx context.Context, k EffectKey, now int64) error {
	_, err := c.exec(ctx, makeDone+"id = ? AND version = ? AND created_at = ? AND (status IN ('running', 'pending') OR status = 'failed' AND exchange <> '')",
		now, now, k.Task, k.Version, k.Created)
	return err
}

// raiseAttempts sets last_error, and the number of attempts unless it is already higher.
const raiseAttempts = "attempts = CASE WHEN attempts < ? THEN ? ELSE attempts END, last_error = ?"

// RecordDeath records in a task that an attempt ended without an outcome.
func (c Conn) RecordDeath(ctx context.Context, k EffectKey, attempts int, cause string, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+raiseAttempts+", updated_at = ? WHERE id = ? AND version = ? AND created_at = ? AND status IN ('pending', 'running')",
		attempts, attempts, cause, now, k.Task, k.Version, k.Created)
	return err
}

// Failure describes how an attempt without an effect changes its task.
type Failure struct {
	Counts   bool   // whether the attempt counts; if not, attempts and last_error do not change
	Attempts int    // the attempt's number
	Cause    string // the new last_error
	Final    bool   // the task fails for good
	GivesWay bool   // the task is cancelled because another task with its unique key is pending
	Stays    bool   // the task stays running until its retry because another task with its unique key is pending
	ResendAt int64  // unless Final, the task is not sent again before that time; 0 leaves it unchanged
}

// RecordFailure records a failure of the attempt with the token, unless the task has had another outcome, another
// attempt is running under a lease, or the row belongs to a newer task with the same id. sqldb.Duplicate returns true
// for the error if the task would become pending while another task with its unique key is pending.
func (c Conn) RecordFailure(ctx context.Context, x Fence, f Failure, token string, now int64) error {
	set, args := "updated_at = ?", []any{now}
	if f.Counts || f.GivesWay {
		set, args = set+", "+raiseAttempts, append(args, f.Attempts, f.Attempts, f.Cause)
	}
	switch {
	case f.Final:
		set, args = set+", status = 'failed', finished_at = ?", append(args, now)
	case f.GivesWay:
		set, args = set+", status = 'cancelled', finished_at = ?", append(args, now)
	case f.Stays:
	default:
		set += ", status = 'pending'"
	}
	if f.ResendAt > 0 {
		// This also marks the task as sent. The relay may not have done that yet, because it skips rows that a handler
		// has locked.
		set, args = set+", resend_at = CASE WHEN resend_at IS NULL OR resend_at < ? THEN ? ELSE resend_at END", append(args, f.ResendAt, f.ResendAt)
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+set+" WHERE "+isTask+" AND status IN ('pending', 'running')"+noLease, append(append(args, x.taskArgs()...), now, token)...)
	return err
}
