package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Holder is the pending task that holds a unique key. Within a transaction, its row is locked.
type Holder struct {
	ID           string
	Version      int64
	Created, Due int64
	Over         bool // whether expires_after has passed
}

// byKey returns the condition for the pending task with a unique key, in the form that matches the index.
func (c Conn) byKey() string {
	if c.mysql() {
		return "pending_key = ?"
	}
	return "unique_key = ? AND status = 'pending'"
}

// InsertUnique inserts a task without its tags, unless another pending task has its unique key or a task with its id
// exists. It reports whether it did. It waits for transactions that are writing or finishing the pending task with that
// key.
func (c Conn) InsertUnique(ctx context.Context, t *Task, now int64) (inserted bool, err error) {
	query := "INSERT INTO rabbitdelay_tasks (" + strings.Join(written, ", ") + ") VALUES (" + marks(len(written)) + ")"
	if c.mysql() {
		// An error would leave a shared lock on the row, and two transactions with that lock would deadlock when they
		// need the exclusive lock. The update changes an existing row, so MySQL returns 2 for it. An inserted row
		// returns 1, whether the driver counts changed or found rows.
		query += " ON DUPLICATE KEY UPDATE updated_at = CASE WHEN " + stillPending + " AND unique_key = VALUES(unique_key) THEN GREATEST(updated_at + 1, VALUES(updated_at)) ELSE updated_at END"
	} else {
		query += " ON CONFLICT DO NOTHING"
	}
	n, err := c.exec(ctx, query, t.written(now)...)
	if err != nil || n != 1 || !c.mysql() {
		return n == 1, err
	}
	// With clientFoundRows, MySQL also returns 1 for an unchanged row that has the same id, so check which task is
	// pending.
	h, found, err := c.Holder(ctx, t.UniqueKey, now)
	return found && h.ID == t.ID, err
}

// Holder locks the pending task with a unique key, and reports whether there is one.
func (c Conn) Holder(ctx context.Context, key string, now int64) (h Holder, found bool, err error) {
	var over int
	query := "SELECT id, version, created_at, due_at, CASE WHEN " + c.unexpired(now) + " THEN 0 ELSE 1 END FROM rabbitdelay_tasks WHERE " + c.byKey() + c.lock(Exclusive)
	err = c.one(ctx, query, []any{key}, &h.ID, &h.Version, &h.Created, &h.Due, &over)
	if errors.Is(err, sql.ErrNoRows) {
		return Holder{}, false, nil
	}
	h.Over = over != 0
	return h, err == nil, err
}

// Push says which pending task PushBack postpones, and until when.
type Push struct {
	Key    string
	Due    int64  // the new due time; at most MaxDue
	Wait   int64  // the longest time in ms from the creation of the task until it is due
	Except string // id of a task that is not pushed back; optional
}

// UniqueAtOnce reports whether InsertUnique and PushBack are one statement each, and therefore need no transaction. On
// MySQL, InsertUnique takes two, and PushBack does not work, because an UPDATE cannot return what it has written.
func (c Conn) UniqueAtOnce() bool { return !c.mysql() }

// PushBack gives the pending task a later due time, and returns its id and that time. It changes nothing, and returns
// an empty id, if no pending task has the key, the task has expired or is the excepted one, or the new due time is not
// later.
func (c Conn) PushBack(ctx context.Context, p Push, now int64) (id string, due int64, err error) {
	const to = "CASE WHEN created_at + ? < ? THEN created_at + ? ELSE ? END"
	args := []any{p.Wait, p.Due, p.Wait, p.Due}
	query := "UPDATE rabbitdelay_tasks SET due_at = " + to + ", updated_at = ?, version = version + 1, " + renewed +
		" WHERE " + c.byKey() + " AND id <> ? AND due_at < " + to + " AND " + c.unexpired(now) + " RETURNING id, due_at"
	err = c.one(ctx, query, slices.Concat(args, []any{now, p.Key, p.Except}, args), &id, &due)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	}
	return id, due, err
}

// ReplaceBy returns the change that overwrites a holder's row with t, and increments its version.
func (t *Task) ReplaceBy(h Holder, now int64) Assignment {
	values := t.written(max(now, h.Created+1))
	var set strings.Builder
	for _, column := range written[1:] {
		set.WriteString(column + " = ?, ")
	}
	return Assignment{set: set.String() + "version = version + 1, " + renewed, args: values[1:]}
}

// Touch changes only updated_at. Under REPEATABLE READ, a handler whose snapshot predates the caller's commit would not
// see the caller's changes. Because the row has changed, the handler's own update of it conflicts, and the handler's
// transaction is run again on a new snapshot.
func Touch(now int64) Assignment { return Assignment{set: touched, args: []any{now, now}} }

// touched sets updated_at to a time that is always later than its current value.
const touched = "updated_at = CASE WHEN updated_at < ? THEN ? ELSE updated_at + 1 END"

// ChangeHolder changes a holder if it has not changed since it was read, and reports whether it did. Without a
// transaction, the row is not locked and may have changed.
func (c Conn) ChangeHolder(ctx context.Context, h Holder, a Assignment) (bool, error) {
	return c.changed(ctx, "UPDATE rabbitdelay_tasks SET "+a.set+" WHERE id = ? AND version = ? AND status = 'pending'", append(a.args, h.ID, h.Version)...)
}

// RewriteTags replaces the tags of a holder's row with the tags of t.
func (c Conn) RewriteTags(ctx context.Context, h Holder, t *Task) error {
	as := *t
	as.ID = h.ID
	return c.writeTags(ctx, []*Task{&as}, Replace)
}

// WriteTags writes the tags of a task that was just inserted.
func (c Conn) WriteTags(ctx context.Context, t *Task) error {
	return c.writeTags(ctx, []*Task{t}, Refuse)
}

// Recent is a task with a unique key that is running or was done.
type Recent struct {
	ID   string
	Done int64 // when it was done; 0 if it is running
}

// RecentOf finds a task with the given unique key that is running or, if there is none, the last one that was done
// after the given time. found is false if there is no such task.
func (c Conn) RecentOf(ctx context.Context, key string, after int64) (r Recent, found bool, err error) {
	query := "SELECT id, CASE WHEN status = 'running' THEN 0 ELSE finished_at END AS done FROM rabbitdelay_tasks WHERE unique_key = ? AND (status = 'running' OR status = 'done' AND finished_at > ?)" +
		" ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, finished_at DESC LIMIT 1" + c.lock(Current)
	err = c.one(ctx, query, []any{key, after}, &r.ID, &r.Done)
	if errors.Is(err, sql.ErrNoRows) {
		return Recent{}, false, nil
	}
	return r, err == nil, err
}

// HasID reports whether a task exists. Like the failed insert before it, it sees what other transactions have
// committed.
func (c Conn) HasID(ctx context.Context, id string) (bool, error) {
	list, err := c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE id = ?"+c.lock(Current), id)
	return len(list) > 0, err
}

// KeyTaken returns a task's unique key, and the id of another pending task that has the key, if there is one.
func (c Conn) KeyTaken(ctx context.Context, id string) (key, holder string, err error) {
	keys, err := c.texts(ctx, "SELECT unique_key FROM rabbitdelay_tasks WHERE unique_key IS NOT NULL AND id = ?"+c.lock(Current), id)
	if err != nil || len(keys) == 0 {
		return "", "", err
	}
	holders, err := c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE "+c.byKey()+" AND id <> ?"+c.lock(Current), keys[0], id)
	return keys[0], strings.Join(holders, ""), err
}

// KeysFree returns the ids of the tasks that may become pending again. If several of the given tasks have the same
// unique key, only the first of them is returned, and only if no task with that key is pending. Tasks without a unique
// key are always returned. The tasks must be locked.
func (c Conn) KeysFree(ctx context.Context, ids []string) ([]string, error) {
	keys := map[string]string{} // unique keys by task id
	err := c.each(ctx, "SELECT id, unique_key FROM rabbitdelay_tasks WHERE unique_key IS NOT NULL AND id IN ("+marks(len(ids))+")"+c.lock(Current), anys(ids), func(scan scanner) error {
		var id, key string
		err := scan(&id, &key)
		keys[id] = key
		return err
	})
	if err != nil || len(keys) == 0 {
		return ids, err
	}
	var free []string
	taken := map[string]bool{}
	for _, id := range ids {
		key, keyed := keys[id]
		if keyed && !taken[key] {
			holders, err := c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE "+c.byKey()+c.lock(Current), key)
			if err != nil {
				return nil, fmt.Errorf("finding the pending task with a unique key: %w", err)
			}
			taken[key] = len(holders) > 0
		}
		if keyed && taken[key] {
			continue
		}
		taken[key] = keyed
		free = append(free, id)
	}
	return free, nil
}

// GiveWay cancels a task in favour of another task with its unique key.
func GiveWay(cause string, now int64) Assignment {
	return Assignment{set: "status = 'cancelled', last_error = ?, finished_at = ?, updated_at = ?", args: []any{cause, now, now}}
}
