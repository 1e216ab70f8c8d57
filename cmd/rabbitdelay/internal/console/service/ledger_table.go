package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// table is a ledger that is stored in the table rabbitdelay_audit.
type table struct {
	db      sqldb.DB
	dialect *sqldb.Resolver
}

// nowSQL is an expression for the database's time in milliseconds. The clocks of the jobs' owners cannot be used,
// because they may differ.
var nowSQL = map[sqldb.Dialect]string{
	sqldb.PostgreSQL: "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
	sqldb.MySQL:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
	sqldb.SQLite:     "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

func withNow(d sqldb.Dialect, query string) string {
	return strings.ReplaceAll(query, "@now", nowSQL[d])
}

// exec executes a statement, in which @now is replaced by the database's time, and returns the number of rows that it
// changed.
func (t *table) exec(ctx context.Context, on sqldb.Conn, query string, args ...any) (int64, error) {
	d, err := t.dialect.Resolve(ctx, on)
	if err != nil {
		return 0, err
	}
	res, err := on.ExecContext(ctx, d.Bind(withNow(d, query)), args...)
	if err != nil {
		return 0, sqldb.Explain(err)
	}
	return res.RowsAffected()
}

func (t *table) add(ctx context.Context, r record) error {
	_, err := t.exec(ctx, t.db, `INSERT INTO rabbitdelay_audit (id, at, who, action, target, detail, error, state, total, done, result, request, place, owner, alive_at)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '', ?, '', ?, @now)`,
		r.ID, r.Entry.At.UnixMilli(), r.Entry.Who, r.Entry.Action, r.Entry.Target, r.Entry.Detail, r.Entry.Error, string(r.State), r.Total, r.request, r.owner)
	return err
}

func (t *table) outcome(ctx context.Context, id, result, why string) error {
	_, err := t.exec(ctx, t.db, "UPDATE rabbitdelay_audit SET result = ?, error = ? WHERE id = ?", result, why, id)
	return err
}

func (t *table) entries(ctx context.Context, target, before string, limit int) ([]record, error) {
	from, args := fromAudit(target)
	query := "SELECT a.id, at, who, action, target, detail, error, result, request" + from
	if before != "" {
		query, args = query+" WHERE a.id < ?", append(args, before)
	}
	var list []record
	err := t.rows(ctx, query+" ORDER BY a.id DESC LIMIT ?", append(args, limit), func(rows sqldb.Rows) error {
		var r record
		var at int64
		e := &r.Entry
		err := rows.Scan(&e.ID, &at, &e.Who, &e.Action, &e.Target, &e.Detail, &e.Error, &e.Result, &r.request)
		r.ID, e.At = e.ID, time.UnixMilli(at)
		list = append(list, r)
		return err
	})
	return list, err
}

// fromAudit returns the clause that selects the entries of a target, or all entries.
func fromAudit(target string) (clause string, args []any) {
	if target == "" {
		return " FROM rabbitdelay_audit a", nil
	}
	return " FROM rabbitdelay_audit a JOIN (SELECT id FROM rabbitdelay_audit WHERE target = ? UNION SELECT audit_id FROM rabbitdelay_audit_tasks WHERE task_id = ?) f ON f.id = a.id",
		[]any{target, target}
}

func (t *table) longer(ctx context.Context, target string, n int) (more bool, err error) {
	from, args := fromAudit(target)
	err = t.rows(ctx, "SELECT a.id"+from+" ORDER BY a.id DESC LIMIT 1 OFFSET ?", append(args, n), func(sqldb.Rows) error {
		more = true
		return nil
	})
	return more, err
}

func (t *table) jobs(ctx context.Context, id string, limit int) ([]record, error) {
	query := "SELECT id, at, who, action, target, detail, error, state, total, done, result, request, place, owner, @now - alive_at, finished_at FROM rabbitdelay_audit"
	args := []any{}
	if id != "" {
		query, args = query+" WHERE id = ? AND state <> ''", append(args, id)
	} else {
		query += " WHERE state IN ('running', 'done', 'failed', 'interrupted', 'stopped')"
	}
	var list []record
	err := t.rows(ctx, query+" ORDER BY id DESC LIMIT ?", append(args, limit), func(rows sqldb.Rows) error {
		var r record
		var at, quiet int64
		var finished sql.NullInt64
		err := rows.Scan(&r.ID, &at, &r.Entry.Who, &r.Entry.Action, &r.Entry.Target, &r.Entry.Detail, &r.Entry.Error, &r.State,
			&r.Total, &r.Done, &r.Result, &r.request, &r.place, &r.owner, &quiet, &finished)
		r.Entry.ID, r.Entry.At = r.ID, time.UnixMilli(at)
		if finished.Valid {
			r.Finished = time.UnixMilli(finished.Int64)
		}
		if r.State == JobRunning && quiet > silent.Milliseconds() {
			r.State = JobInterrupted
		}
		list = append(list, r)
		return err
	})
	return list, err
}

func (t *table) rows(ctx context.Context, query string, args []any, row func(sqldb.Rows) error) error {
	d, err := t.dialect.Resolve(ctx, t.db)
	if err != nil {
		return err
	}
	rows, err := t.db.QueryContext(ctx, d.Bind(withNow(d, query)), args...)
	if err != nil {
		return sqldb.Explain(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (t *table) alive(ctx context.Context, r record) (bool, error) {
	return t.mine(ctx, t.db, r, "alive_at = @now")
}

func (t *table) reached(ctx context.Context, tx sqldb.Conn, r record, tasks []any) (bool, error) {
	on := sqldb.Conn(t.db)
	if tx != nil {
		on = tx
	}
	mine, err := t.mine(ctx, on, r, "alive_at = @now, done = ?, place = ?", r.Done, r.place)
	if err != nil || !mine || len(tasks) == 0 {
		return mine, err
	}
	err = t.changed(ctx, on, r.ID, tasks)
	return err == nil, err
}

// changed records the tasks that a bulk change has changed.
func (t *table) changed(ctx context.Context, on sqldb.Conn, id string, tasks []any) error {
	if len(tasks) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(tasks))
	for _, task := range tasks {
		args = append(args, id, task)
	}
	d, err := t.dialect.Resolve(ctx, on)
	if err != nil {
		return err
	}
	// Skip tasks that are already recorded, because a job may change a task twice, for example if the task failed again
	// in the meantime.
	_, err = t.exec(ctx, on, d.InsertMissing("rabbitdelay_audit_tasks (audit_id, task_id) VALUES (?, ?)"+strings.Repeat(", (?, ?)", len(tasks)-1)), args...)
	return err
}

// mine updates the row of a running job of r.owner, and reports whether that row exists.
func (t *table) mine(ctx context.Context, on sqldb.Conn, r record, set string, args ...any) (bool, error) {
	const where = " WHERE id = ? AND owner = ? AND state = 'running'"
	n, err := t.exec(ctx, on, "UPDATE rabbitdelay_audit SET "+set+where, append(args, r.ID, r.owner)...)
	if err != nil || n > 0 {
		return err == nil, err
	}
	// Check whether the row exists, because MySQL reports 0 affected rows if the UPDATE changed no value, for example
	// if it runs twice within a millisecond.
	var found int
	d, err := t.dialect.Resolve(ctx, on)
	if err != nil {
		return false, err
	}
	err = on.QueryRowContext(ctx, d.Bind("SELECT COUNT(*) FROM rabbitdelay_audit"+where), r.ID, r.owner).Scan(&found)
	return found > 0, err
}

func (t *table) end(ctx context.Context, r record) error {
	_, err := t.exec(ctx, t.db, "UPDATE rabbitdelay_audit SET state = CASE WHEN state = 'running' THEN ? ELSE state END, done = ?, place = ?, result = ?, error = ?, finished_at = @now WHERE id = ? AND owner = ? AND state IN ('running', 'stopped')",
		string(r.State), r.Done, r.place, r.Result, r.Entry.Error, r.ID, r.owner)
	return err
}

func (t *table) stop(ctx context.Context, id string) (bool, error) {
	n, err := t.exec(ctx, t.db, "UPDATE rabbitdelay_audit SET state = 'stopped', finished_at = @now WHERE id = ? AND state IN ('running', 'interrupted')", id)
	return n > 0, err
}

func (t *table) take(ctx context.Context, id, owner string) (bool, error) {
	n, err := t.exec(ctx, t.db, "UPDATE rabbitdelay_audit SET state = 'running', owner = ?, alive_at = @now, finished_at = NULL, result = '', error = ''"+
		" WHERE id = ? AND (state IN ('failed', 'interrupted', 'stopped') OR (state = 'running' AND alive_at < @now - ?))", owner, id, silent.Milliseconds())
	return n > 0, err
}

// purgeBatch is the maximum number of rows that one transaction deletes.
const purgeBatch = 1000

func (t *table) purge(ctx context.Context, before time.Time) (int64, error) {
	d, err := t.dialect.Resolve(ctx, t.db)
	if err != nil {
		return 0, err
	}
	ms := before.UnixMilli()
	n, err := sqldb.Purge(ctx, t.db, d, sqldb.Expired{
		Table: "rabbitdelay_audit", Key: "id", Order: "id",
		Where: "id < ? AND (state <> 'running' OR alive_at < ?)", Args: []any{firstID(before), ms},
	}, purgeBatch)
	if err != nil {
		return n, err
	}
	_, err = sqldb.Purge(ctx, t.db, d, sqldb.Expired{
		Table: "rabbitdelay_audit_tasks", Key: "audit_id, task_id", Order: "audit_id, task_id",
		Where: "audit_id < ? AND NOT EXISTS (SELECT 1 FROM rabbitdelay_audit WHERE id = audit_id)", Args: []any{firstID(before)},
		Unlocked: true,
	}, purgeBatch)
	return n, err
}

// firstID returns a string that sorts before every id that newID generates at or after the given time.
func firstID(at time.Time) string {
	ms := at.UnixMilli()
	return fmt.Sprintf("%08x-%04x-7", ms>>16, ms&0xffff)
}

// Recorder writes audit entries for changes made outside of a Core, such as by a command.
type Recorder struct{ table table }

// NewRecorder returns a Recorder that writes to the audit table of db.
func NewRecorder(db *sql.DB) *Recorder {
	on := sqldb.Of(db)
	return &Recorder{table{db: on, dialect: sqldb.NewResolver(on, "")}}
}

// recording is the timeout of a statement that writes to the audit.
const recording = 10 * time.Second

// Record writes an audit entry for the user who, calls do with the entry's id, and adds what do returned to the entry:
// the one-line result and the error. If the entry cannot be written, Record does not call do and returns
// ErrNotRecorded.
func (r *Recorder) Record(ctx context.Context, who string, x change.Entry, do func(id string) (result string, err error)) error {
	e := newEntry(Identity{Name: who}, x)
	adding, cancel := context.WithTimeout(ctx, recording)
	defer cancel()
	if err := r.table.add(adding, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	result, err := do(e.ID)
	why := ""
	if err != nil {
		why = err.Error()
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), recording)
	defer cancel()
	if failed := r.table.outcome(ending, e.ID, result, why); failed != nil {
		err = errors.Join(err, fmt.Errorf("the outcome could not be recorded in the audit: %w", failed))
	}
	return err
}

// Changed records the progress of an entry and the tasks that a batch has changed, in the batch's transaction.
func (r *Recorder) Changed(ctx context.Context, tx sqldb.Conn, id string, done int64, place string, tasks []any) error {
	if _, err := r.table.exec(ctx, tx, "UPDATE rabbitdelay_audit SET done = ?, place = ? WHERE id = ?", done, place, id); err != nil {
		return err
	}
	return r.table.changed(ctx, tx, id, tasks)
}
