package rows

import (
	"context"
	"database/sql"
)

// EffectKey is the key of a row of rabbitdelay_effects.
type EffectKey struct {
	Task             string
	Created, Version int64
	Queue            string
}

// effectRow finds the row of an EffectKey.
const effectRow = " WHERE task_id = ? AND created_at = ? AND version = ? AND queue = ?"

func (k EffectKey) args() []any { return []any{k.Task, k.Created, k.Version, k.Queue} }

// Record is what a row of rabbitdelay_effects says of earlier attempts.
type Record struct {
	Attempts int
	Token    string // of an attempt without an outcome; empty for none
	Lease    int64
	Done     bool
}

// LockRecord locks the row, which it makes if there is none.
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

// BeginAttempt records an attempt under a token, with a lease until an instant, or 0.
func (c Conn) BeginAttempt(ctx context.Context, k EffectKey, number int, token string, lease, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_effects SET attempts = ?, lease_token = ?, lease_until = ?, updated_at = ?"+effectRow, append([]any{number, token, lease, now}, k.args()...)...)
	return err
}

// EndAttempt records that the attempt of a token had an outcome, and how many attempts
// there were.
func (c Conn) EndAttempt(ctx context.Context, k EffectKey, number int, token string) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_effects SET attempts = ?, lease_token = '', lease_until = 0"+effectRow+" AND lease_token = ?",
		append(append([]any{number}, k.args()...), token)...)
	return err
}

// RenewLease renews the lease of a token, and reports whether it is still that token's.
func (c Conn) RenewLease(ctx context.Context, k EffectKey, token string, until int64) (bool, error) {
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET lease_until = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL",
		append(append([]any{until}, k.args()...), token)...)
}

// CompleteLease records the effect of the lease of a token, and reports whether it is
// still that token's.
func (c Conn) CompleteLease(ctx context.Context, k EffectKey, token string, now int64) (bool, error) {
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET done_at = ?, lease_until = 0, updated_at = ?"+effectRow+" AND lease_token = ? AND done_at IS NULL",
		append(append([]any{now, now}, k.args()...), token)...)
}

// StartRunning makes a task running that passes the fence. Of a task to an exchange other
// queues may have done their part, or failed.
func (c Conn) StartRunning(ctx context.Context, f Fence, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'running', finished_at = NULL, updated_at = ? WHERE "+fenced+
		" AND (status = 'pending' OR status = 'failed' AND exchange <> '') AND "+c.unexpired(now), append([]any{now}, f.args()...)...)
	return err
}

// EndRunning makes a task done whose work under a lease is complete. It is pending again
// if the lease has ended and nobody has begun since.
func (c Conn) EndRunning(ctx context.Context, k EffectKey, now int64) error {
	_, err := c.exec(ctx, makeDone+"id = ? AND version = ? AND created_at = ? AND (status IN ('running', 'pending') OR status = 'failed' AND exchange <> '')",
		now, now, k.Task, k.Version, k.Created)
	return err
}

// raiseAttempts keeps the higher number of attempts.
const raiseAttempts = "attempts = CASE WHEN attempts < ? THEN ? ELSE attempts END, last_error = ?"

// RecordDeath records in a task that an attempt ended without an outcome.
func (c Conn) RecordDeath(ctx context.Context, k EffectKey, attempts int, cause string, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+raiseAttempts+", updated_at = ? WHERE id = ? AND version = ? AND status IN ('pending', 'running')",
		attempts, attempts, cause, now, k.Task, k.Version)
	return err
}

// Failure is what an attempt's end without an effect does to its task.
type Failure struct {
	Counts   bool   // otherwise attempts and last_error stay as they are
	Attempts int    // the attempt's number
	Cause    string // as last_error has it
	Final    bool   // the task is failed
	GivesWay bool   // it is cancelled, because another task of its unique key is pending
	Stays    bool   // it stays running until its retry, because such a task is pending
	ResendAt int64  // if not final: it is not sent again before that; 0 leaves it
}

// RecordFailure records a failure of the attempt of a token, unless the task has had
// another outcome or an attempt of another queue runs under a lease. A task that is to
// be pending again while another one of its unique key is: sqldb.Duplicate.
func (c Conn) RecordFailure(ctx context.Context, id string, version int64, f Failure, token string, now int64) error {
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
		// The relay may not have marked the row yet; it leaves rows alone that a handler
		// holds.
		set += ", status = 'pending'"
	}
	if f.ResendAt > 0 {
		set, args = set+", resend_at = CASE WHEN resend_at IS NULL OR resend_at < ? THEN ? ELSE resend_at END", append(args, f.ResendAt, f.ResendAt)
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+set+" WHERE id = ? AND version = ? AND status IN ('pending', 'running')"+noLease, append(args, id, version, now, token)...)
	return err
}
