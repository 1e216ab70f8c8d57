package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Fence has the values of a message that are compared with its task's row. The creation time prevents a
// message of an older, deleted task from having an effect for a new task with the same id.
type Fence struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	Created int64  `json:"created"` // 0 matches any, because messages of other publishers may have none
	Due     int64  `json:"due"`
}

// fenced compares a row with a Fence.
const fenced = "id = ? AND version = ? AND created_at BETWEEN ? AND ? AND due_at <= ?"

func (f Fence) args() []any {
	from, to := f.Created, f.Created
	if from == 0 {
		from, to = math.MinInt64, math.MaxInt64
	}
	return []any{f.ID, f.Version, from, to, f.Due}
}

// makeDone is the beginning of the statements that make tasks done. The fence of a task to a queue is one
// such statement. For a task to an exchange, the handler of each queue records its own effect first, and
// makes the task done after the effect. Until then it has no exclusive lock on the task, so that the
// handlers of different queues do not wait for each other. The failure of another queue's handler does
// not end the task.
const makeDone = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ? WHERE "

// Done makes a task to a queue done if it passes the fence, and reports whether it did.
func (c Conn) Done(ctx context.Context, f Fence, now int64) (bool, error) {
	return c.changed(ctx, makeDone+fenced+" AND status = 'pending' AND exchange = '' AND "+c.unexpired(now), append([]any{now, now}, f.args()...)...)
}

// AllDone makes all tasks to queues that pass their fences done, with one statement, and returns their
// number.
func (c Conn) AllDone(ctx context.Context, fences []Fence, now int64) (int64, error) {
	open := stillPending + " AND (exchange = '') IS TRUE AND (" + c.unexpired(now) + ") IS TRUE"
	if c.postgres() {
		// Planning the statement below would cost more than running it. This one is planned once. The
		// planner does not know the number of tasks, so the statement is written in a way that finds
		// the rows by id. Otherwise it would read the whole table, or all pending rows of the index
		// of the status.
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

// ExchangeDone makes a task to an exchange done after its effect in one of its queues,
// and reports whether the task still allowed that.
func (c Conn) ExchangeDone(ctx context.Context, f Fence, now int64) (bool, error) {
	return c.changed(ctx, makeDone+fenced+" AND status IN ('pending', 'running', 'failed') AND exchange <> ''", append([]any{now, now}, f.args()...)...)
}

// RecordEffect records the effect of a queue unless it is recorded already, and reports
// whether it did. Another delivery of the same queue waits here for the outcome.
func (c Conn) RecordEffect(ctx context.Context, k EffectKey, now int64) (bool, error) {
	query := c.insertMissing("rabbitdelay_effects (task_id, created_at, version, queue, done_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)")
	recorded, err := c.changed(ctx, query, append(k.args(), now, now)...)
	if err != nil || recorded {
		return recorded, err
	}
	// The row exists. Without an effect it belongs to an attempt.
	return c.changed(ctx, "UPDATE rabbitdelay_effects SET done_at = ?, updated_at = ?"+effectRow+" AND done_at IS NULL AND lease_until <= ?",
		append(append([]any{now, now}, k.args()...), now)...)
}

// Expire marks a task as expired because its message arrived too late.
func (c Conn) Expire(ctx context.Context, id string, version, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'expired', finished_at = ?, updated_at = ? WHERE id = ? AND version = ? AND status = 'pending'", now, now, id, version)
	return err
}

// Found is the state of a task's row that a message is checked against.
type Found struct {
	Version int64 // 0 if there is no such task
	Created int64
	Due     int64
	Status  string
	ToQueue bool
	Keyed   bool // whether it has a unique key
	Over    bool // whether expires_after has passed
}

// Find reads a task. now is this process's clock.
func (c Conn) Find(ctx context.Context, id string, now int64, l Lock) (f Found, err error) {
	return c.find(ctx, id, now, c.lock(l))
}

// find reads a task. more is the end of the statement, with further conditions or a lock.
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

// FindWorking reads a task for a handler that is about to work on a task to an exchange. If the database has
// a suitable lock, the recall of a pause then skips the row. FindWorking does not lock a task with a
// unique key, because its handlers lock it exclusively.
func (c Conn) FindWorking(ctx context.Context, id string, now int64) (Found, error) {
	if c.postgres() {
		if f, err := c.find(ctx, id, now, " AND unique_key IS NULL"+c.lock(Working)); err != nil || f.Version != 0 {
			return f, err
		}
	}
	return c.Find(ctx, id, now, Unlocked)
}

// Is reports whether the row is the fence's task in the fence's version.
func (f Found) Is(x Fence) bool {
	return f.Version == x.Version && (x.Created == 0 || x.Created == f.Created)
}

// Open reports whether the row allows that the message still has an effect.
func (f Found) Open(x Fence) bool {
	return f.Is(x) && (f.Status == Pending || !f.ToQueue && f.Status != Cancelled && f.Status != Expired)
}

// Late reports whether the row is the fence's task, and is pending although it has expired.
func (f Found) Late(x Fence) bool { return f.Is(x) && f.Status == Pending && f.Over }
