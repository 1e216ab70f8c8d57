package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Fence contains the values of a message that are compared with its task's row. The creation time prevents a message of
// an older, deleted task from having an effect for a new task with the same id.
type Fence struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	Created int64  `json:"created"` // 0 matches any, because messages from other publishers may not have the header
	Due     int64  `json:"due"`
}

// fenced is the condition that a row matches a Fence.
const fenced = "id = ? AND version = ? AND created_at BETWEEN ? AND ? AND due_at <= ?"

func (f Fence) args() []any { return append(f.taskArgs(), f.Due) }

// isTask is the condition of fenced without the due time. It is for changes other than the effect of a task, such as
// recording a failure.
const isTask = "id = ? AND version = ? AND created_at BETWEEN ? AND ?"

func (f Fence) taskArgs() []any {
	from, to := f.Created, f.Created
	if from == 0 {
		from, to = math.MinInt64, math.MaxInt64
	}
	return []any{f.ID, f.Version, from, to}
}

// makeDone is the first part of the statements that mark tasks as done.
//
// For a task that was sent to a queue, such a statement is the fence: the handler runs only if the statement changes
// the row. For a task that was sent to an exchange, the handler of each queue first records its own effect, and marks
// the task as done after the effect. Until then the handler has no exclusive lock on the task, so that the handlers of
// different queues do not wait for each other. If the handler of one queue fails, the task does not end.
const makeDone = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ? WHERE "

// Done marks a task that was sent to a queue as done if it passes the fence, and reports whether it did.
func (c Conn) Done(ctx context.Context, f Fence, now int64) (bool, error) {
	return c.changed(ctx, makeDone+fenced+" AND status = 'pending' AND exchange = '' AND "+c.unexpired(now), append([]any{now, now}, f.args()...)...)
}

// AllDone marks as done, with one statement, all of the given tasks that were sent to queues and that pass their
// fences, and returns their number.
func (c Conn) AllDone(ctx context.Context, fences []Fence, now int64) (int64, error) {
	open := stillPending + " AND (exchange = '') IS TRUE AND (" + c.unexpired(now) + ") IS TRUE"
	if c.postgres() {
		// Planning the statement below would take longer than running it, so PostgreSQL gets this one, which it plans
		// only once, before it knows the number of tasks. The ARRAY makes the planner find the rows by id. Without it,
		// the planner would read the whole table, or all pending rows in the index of the status.
		list, err := json.Marshal(fences)
		if err != nil {
			return 0, err
		}
		return c.exec(ctx, "WITH fence AS (SELECT * FROM json_to_recordset("+sqldb.JSON+") AS fence (id text, version bigint, created bigint, due bigint)) "+
			"UPDATE rabbitdelay_tasks AS tasks SET status = 'done', finished_at = ?, updated_at = ? FROM fence WHERE tasks.id = ANY (ARRAY (SELECT id FROM fence)) AND tasks.id = fence.id"+
			" AND tasks.version = fence.version AND fence.created IN (0, tasks.created_at) AND tasks.due_at <= fence.due AND "+open, string(list), now, now)
	}
	const one = "(" + fenced + ")"
	args := append(make([]any, 0, 2+5*len(fences)), now, now)
	for _, f := range fences {
		args = append(args, f.args()...)
	}
	return c.exec(ctx, makeDone+open+" AND ("+one+strings.Repeat(" OR "+one, len(fences)-1)+")", args...)
}

// ExchangeDone marks a task that was sent to an exchange as done, after one of the exchange's queues has had its
// effect. It returns false if the task was cancelled or changed in the meantime.
func (c Conn) ExchangeDone(ctx context.Context, f Fence, now int64) (bool, error) {
	return c.changed(ctx, makeDone+fenced+" AND status IN ('pending', 'running', 'failed') AND exchange <> ''", append([]any{now, now}, f.args()...)...)
}

// RecordEffect records the effect for a queue unless it is already recorded, and reports whether it did. If another
// transaction is recording the same effect, the statement waits for its outcome.
func (c Conn) RecordEffect(ctx context.Context, k EffectKey, now int64) (bool, error) {
	query := c.insertMissing("rabbitdelay_effects (task_id, created_at, version, queue, done_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)")
	recorded, err := c.changed(ctx, query, append(k.args(), now, now)...)
	if err != nil || recorded {
		return recorded, err
	}
	// The row exists. If it contains no effect yet, it was inserted for an attempt that was recorded before the attempt
	// ran. Record the effect in the row, unless another attempt holds the lease.
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET done_at = ?, updated_at = ?"+effectRow+" AND done_at IS NULL AND lease_until <= ?",
		append(append([]any{now, now}, k.args()...), now)...)
}

// Expire marks a task as expired because its message arrived too late.
func (c Conn) Expire(ctx context.Context, x Fence, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'expired', finished_at = ?, updated_at = ? WHERE "+isTask+" AND status = 'pending'", append([]any{now, now}, x.taskArgs()...)...)
	return err
}

// Found is the state of a task's row, with which a message is compared.
type Found struct {
	Version int64 // 0 if there is no such task
	Created int64
	Due     int64
	Status  string
	ToQueue bool
	Keyed   bool // whether it has a unique key
	Over    bool // whether expires_after has passed
}

// Find reads a task. The parameter now is used if another clock replaces the database's; see unexpired.
func (c Conn) Find(ctx context.Context, id string, now int64, l Lock) (f Found, err error) {
	return c.find(ctx, id, now, c.lock(l))
}

// find reads a task. The parameter more is appended to the statement; it contains further conditions or a lock.
func (c Conn) find(ctx context.Context, id string, now int64, more string) (f Found, err error) {
	var exchange string
	var keyed, over int
	query := "SELECT version, created_at, due_at, status, exchange, CASE WHEN unique_key IS NULL THEN 0 ELSE 1 END, CASE WHEN " + c.unexpired(now) + " THEN 0 ELSE 1 END FROM rabbitdelay_tasks WHERE id = ?" + more
	err = c.one(ctx, query, []any{id}, &f.Version, &f.Created, &f.Due, &f.Status, &exchange, &keyed, &over)
	if errors.Is(err, sql.ErrNoRows) {
		return Found{}, nil
	}
	f.ToQueue, f.Keyed, f.Over = exchange == "", keyed != 0, over != 0
	return f, err
}

// FindWorking reads a task that was sent to an exchange, for a handler that is about to work on it. On PostgreSQL it
// marks the row, so that recalling the tasks of a paused destination skips it. On MySQL and MariaDB, Recall sees the
// effect that the handler records. FindWorking does not mark a task with a unique key, because its handler locks it
// exclusively.
func (c Conn) FindWorking(ctx context.Context, id string, now int64) (Found, error) {
	if c.postgres() {
		if f, err := c.find(ctx, id, now, " AND unique_key IS NULL"+c.lock(Working)); err != nil || f.Version != 0 {
			return f, err
		}
	}
	return c.Find(ctx, id, now, Unlocked)
}

// Is reports whether the row is the fence's task, in the fence's version.
func (f Found) Is(x Fence) bool {
	return f.Version == x.Version && (x.Created == 0 || x.Created == f.Created)
}

// Open reports whether the row still allows the message to take effect.
func (f Found) Open(x Fence) bool {
	return f.Is(x) && (f.Status == Pending || !f.ToQueue && f.Status != Cancelled && f.Status != Expired)
}

// Late reports whether the row is the fence's task, and is still pending although it has expired.
func (f Found) Late(x Fence) bool { return f.Is(x) && f.Status == Pending && f.Over }
