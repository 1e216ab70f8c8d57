package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/timetable"
)

const (
	// ahead is how long before its instant an occurrence becomes a task at the
	// latest. Half of that is what a relay may be late without a message's being so.
	ahead = time.Minute
	// misfireAfter is how late an occurrence is missed.
	misfireAfter = time.Minute
	// mostPlanned bounds what one transaction makes, beside what was missed.
	mostPlanned = 1000
	// wrongPause is the pause before a row that cannot be read is looked at again:
	// it may have been mended, or its time zone may be known by then.
	wrongPause = time.Hour
	// never is a plan_at that does not come.
	never = math.MaxInt64
)

// What is said in last_error of a task that is cancelled here. One that was
// withdrawn may come back, unlike one that somebody cancelled.
const (
	withdrawn = "withdrawn: its schedule was changed"
	leftOut   = "missed: its schedule's misfire policy leaves it out"
)

// planner makes the tasks of one row, in a transaction that holds the row.
type planner struct {
	s     *Store
	c     sqldb.Conn
	d     Dialect
	r     *row
	table *timetable.Timetable
	now   time.Time
	// back are the versions of the tasks that were withdrawn, by id.
	back map[string]int64
}

// plan brings the tasks of a row up to date: it makes those that are to exist by
// now, and withdraws those of an older version of the row.
func (s *Store) plan(ctx context.Context, c sqldb.Conn, d Dialect, r *row) error {
	p := &planner{s: s, c: c, d: d, r: r, now: s.now()}
	fresh, wrong := r.Version != r.planned, r.LastError != ""
	if fresh {
		if err := p.withdraw(ctx, r.Paused); err != nil {
			return err
		}
	}
	readable := p.read()
	switch {
	case r.Paused:
		return p.settle(ctx, never)
	case r.limit != nil: // the row stays due, for a relay that can read it
		r.Version = r.planned
		return p.settle(ctx, min(r.planAt.UnixMilli(), p.now.UnixMilli()))
	case !readable:
		return p.settle(ctx, p.now.Add(wrongPause).UnixMilli())
	}
	var late []time.Time
	switch {
	case fresh, wrong && r.NextAt.IsZero():
		r.NextAt = p.table.Next(p.now)
	case wrong, p.now.Sub(r.planAt) > misfireAfter:
		var err error
		if late, err = p.misfire(ctx); err != nil {
			return err
		}
	}
	choose := p.upcoming
	if r.Overlap == OverlapSkip {
		choose = p.single
	}
	list, lookAt, err := choose(ctx, late)
	if err != nil {
		return err
	}
	if err := p.materialise(ctx, list); err != nil {
		return err
	}
	return p.settle(ctx, lookAt)
}

// read checks what the row says, which another program may have written. What
// another relay may be able to read is no fault of the row: it is in the row's limit.
func (p *planner) read() bool {
	var err error
	r := p.r
	switch most := int64(p.s.cfg.MaxBody); {
	case r.bad != nil:
		err = r.bad
	case r.bodySize > largestBody:
		err = r.Recurring.bad("Body", "%d bytes, expected at most %d", r.bodySize, largestBody)
	case r.bodySize > most:
		r.limit = r.Recurring.bad("Body", "%d bytes, but this relay's Config.MaxBody is %d; raise it, or another relay plans it", r.bodySize, most)
		return false
	default:
		p.table, err = r.check(largestBody)
	}
	if err == nil {
		r.LastError = ""
		return true
	}
	if re, ok := errors.AsType[*RecurringError](err); ok && re.Field == "TimeZone" {
		r.limit = err // another relay's time zones may be newer
	} else {
		r.NextAt = time.Time{}
	}
	if reason := text(err); reason != r.LastError {
		p.s.log.Warn("a recurring task is wrong; correct its row, or delete it", zap.String("name", r.Name), zap.Error(err))
		r.LastError = reason
	}
	return false
}

// from is the id of the first occurrence from an instant on, and to one after all
// of them.
func (p *planner) from(at time.Time) string { return p.r.occurrence(at).ID }
func (p *planner) to() string               { return p.r.Name + "@\U0010FFFF" }

// withdraw takes the tasks away that are not due yet, and remembers those that
// were taken away earlier. Their new version is one that no message has, and that
// no relay marks which is publishing the old one. With all it takes those too that
// were moved away from an instant that has passed, in whose place nothing would come.
func (p *planner) withdraw(ctx context.Context, all bool) error {
	now, from := p.now.UnixMilli(), p.from(p.now.Add(-maxJitter))
	if all {
		from = p.r.Name + "@"
	}
	if _, err := p.c.ExecContext(ctx, p.d.Bind("UPDATE rabbitdelay_tasks SET status = 'cancelled', version = version + 1, last_error = ?, finished_at = ?, updated_at = ? "+
		"WHERE id >= ? AND id < ? AND status = 'pending' AND due_at > ?"), withdrawn, now, now, from, p.to(), now); err != nil {
		return err
	}
	query := "SELECT id, version FROM rabbitdelay_tasks WHERE id >= ? AND id < ? AND status = 'cancelled' AND last_error = ?"
	if p.d != SQLite {
		query += " FOR UPDATE" // also reads what was committed after the caller's transaction began
	}
	rows, err := p.c.QueryContext(ctx, p.d.Bind(query), from, p.to(), withdrawn)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	p.back = map[string]int64{}
	for rows.Next() {
		var id string
		var version int64
		if err := rows.Scan(&id, &version); err != nil {
			return err
		}
		p.back[id] = version
	}
	p.r.NextAt = time.Time{}
	if p.r.LastAt.After(p.now) {
		p.r.LastAt = time.Time{}
	}
	return rows.Err()
}

// misfire decides on what was missed, and gives those that are to be made late.
func (p *planner) misfire(ctx context.Context) ([]time.Time, error) {
	r := p.r
	cut := p.now.Add(-misfireAfter)
	keep := map[Misfire]int{MisfireSkip: 0, MisfireOnce: 1, MisfireAll: r.MisfireLimit}[r.Misfire]
	var late []time.Time
	if !r.NextAt.IsZero() && !r.NextAt.After(cut) {
		late = p.table.Latest(r.NextAt, cut, keep+1)
		if n := len(late) - keep; n > 0 {
			r.SkippedAt, late = late[n-1], late[n:]
		}
		p.s.log.Warn("occurrences of a recurring task were missed", zap.String("name", r.Name), zap.Time("first", r.NextAt),
			zap.Time("until", cut), zap.String("policy", string(r.Misfire)), zap.Int("made_late", len(late)))
		r.NextAt = p.table.Next(cut)
	}
	if r.Misfire == MisfireAll || p.now.Sub(r.planAt) <= misfireAfter {
		return late, nil
	}
	ids, err := p.overdue(ctx, cut)
	if err != nil || len(ids) == 0 {
		return late, err
	}
	if r.Misfire == MisfireOnce && len(late) == 0 {
		ids = ids[:len(ids)-1] // the last of them is the one
	}
	return late, p.leaveOut(ctx, ids)
}

// overdue are the tasks that were made before the outage and that no handler has
// begun with, in their order.
func (p *planner) overdue(ctx context.Context, cut time.Time) ([]string, error) {
	query := "SELECT id FROM rabbitdelay_tasks WHERE id >= ? AND id < ? AND status = 'pending' AND attempts = 0 AND due_at <= ? " +
		"AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects WHERE task_id = id) ORDER BY id"
	if p.d != SQLite {
		query += " FOR UPDATE SKIP LOCKED" // a handler has it
	}
	rows, err := p.c.QueryContext(ctx, p.d.Bind(query), p.from(p.r.planAt.Add(-ahead-p.r.Jitter)), p.to(), cut.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		if _, at, _ := ParseOccurrence(id); p.from(at) == id { // and not fired by hand
			ids = append(ids, id)
		}
	}
	return ids, rows.Err()
}

func (p *planner) leaveOut(ctx context.Context, ids []string) error {
	now := p.now.UnixMilli()
	for _, id := range ids {
		if _, err := p.c.ExecContext(ctx, p.d.Bind("UPDATE rabbitdelay_tasks SET status = 'cancelled', last_error = ?, finished_at = ?, updated_at = ? WHERE id = ? AND status = 'pending'"),
			leftOut, now, now, id); err != nil {
			return err
		}
		if _, at, ok := ParseOccurrence(id); ok && at.After(p.r.SkippedAt) {
			p.r.SkippedAt = at
		}
	}
	return nil
}

// upcoming adds what is to be a task by now: all within ahead, and the next one in
// any case. lookAt is when to look again.
func (p *planner) upcoming(_ context.Context, late []time.Time) (list []time.Time, lookAt int64, err error) {
	r := p.r
	list = late
	last := r.LastAt
	for !r.NextAt.IsZero() && (!last.After(p.now) || !r.NextAt.After(p.now.Add(ahead))) {
		if len(list)-len(late) == mostPlanned {
			return list, p.now.UnixMilli(), nil
		}
		last = r.NextAt
		list, r.NextAt = append(list, last), p.table.Next(last)
	}
	switch {
	case r.NextAt.IsZero():
		return list, never, nil
	case r.NextAt.Add(-ahead / 2).Before(last):
		return list, r.NextAt.Add(-ahead / 2).UnixMilli(), nil
	}
	return list, last.UnixMilli(), nil
}

// single is upcoming for what must not overlap: the next one becomes a task when
// the last one is no longer pending, and is left out if it is still then.
func (p *planner) single(ctx context.Context, late []time.Time) (list []time.Time, lookAt int64, err error) {
	r := p.r
	if !r.NextAt.IsZero() && !r.NextAt.After(p.now) { // the last of those that are due
		late = append(late, p.table.Latest(r.NextAt, p.now, 1)...)
		r.NextAt = p.table.Next(p.now)
	}
	busy, err := p.pending(ctx)
	if err != nil {
		return nil, 0, err
	}
	if n := len(late); n > 1 || n == 1 && busy {
		r.SkippedAt = late[n-1]
		if !busy {
			r.SkippedAt, late = late[n-2], late[n-1:]
		}
	}
	switch {
	case busy:
		return nil, p.recheck(), nil
	case len(late) > 0:
		list = late
	case r.NextAt.IsZero():
		return nil, never, nil
	default:
		list, r.NextAt = []time.Time{r.NextAt}, p.table.Next(r.NextAt)
	}
	return list, max(millis(r.occurrence(list[0]).DeliverAt), p.now.UnixMilli()+1), nil
}

// pending tells whether the task of the last occurrence is.
func (p *planner) pending(ctx context.Context) (bool, error) {
	if p.r.LastAt.IsZero() {
		return false, nil
	}
	var status Status
	err := p.c.QueryRowContext(ctx, p.d.Bind("SELECT status FROM rabbitdelay_tasks WHERE id = ?"), p.r.occurrence(p.r.LastAt).ID).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) { // purged, or deleted by somebody
		return false, nil
	}
	return status == StatusPending || status == StatusRunning, err
}

// recheck is when to look again whether the last one is pending: soon after its
// instant, then more and more seldom, and when the next one would be due.
func (p *planner) recheck() int64 {
	due := p.r.occurrence(p.r.LastAt).DeliverAt
	if due.After(p.now) {
		return millis(due)
	}
	at := p.now.Add(min(max(p.now.Sub(due)/4, time.Second), time.Minute))
	if next := p.r.NextAt; !next.IsZero() && next.Before(at) {
		at = next
	}
	return millis(at)
}

// carried are the columns that a task has from its Recurring.
const carried = "queue, exchange, routing_key, body, content_type, type, correlation_id, priority, expires_after, headers"

// materialise makes the tasks of occurrences. One that exists, whatever became of
// it, stays as it is, unless it was withdrawn.
func (p *planner) materialise(ctx context.Context, list []time.Time) error {
	if len(list) == 0 {
		return nil
	}
	values, exists := "?, ?, ?, ?, ?", "ON CONFLICT (id) DO NOTHING"
	switch p.d {
	case MySQL:
		exists = "ON DUPLICATE KEY UPDATE rabbitdelay_tasks.id = rabbitdelay_tasks.id"
	case PostgreSQL: // which takes them for text otherwise
		values = "CAST(? AS text), CAST(? AS bigint), CAST(? AS bigint), CAST(? AS bigint), CAST(? AS bigint)"
	}
	query := p.d.Bind(fmt.Sprintf("INSERT INTO rabbitdelay_tasks (id, due_at, version, created_at, updated_at, %s) SELECT %s, %s FROM rabbitdelay_schedules WHERE name = ? %s",
		carried, values, carried, exists))
	now := p.now.UnixMilli()
	first := int64(never)
	var made []Task
	for _, at := range list {
		o := p.r.occurrence(at)
		version := int64(1)
		if v, again := p.back[o.ID]; again {
			version = v
			if _, err := p.c.ExecContext(ctx, p.d.Bind("DELETE FROM rabbitdelay_tasks WHERE id = ?"), o.ID); err != nil {
				return err
			}
		}
		res, err := p.c.ExecContext(ctx, query, o.ID, millis(o.DeliverAt), version, now, now, p.r.Name)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err == nil && n > 0 {
			made = append(made, Task{ID: o.ID, Tags: p.r.Task.Tags})
		}
		if at.After(p.r.LastAt) {
			p.r.LastAt = at
		}
		first = min(first, millis(o.DeliverAt))
	}
	p.s.wakeFor(first)
	if len(made) == 0 || len(p.r.Task.Tags) == 0 {
		return nil
	}
	return writeTags(ctx, p.c, p.d, made, true)
}

// settle writes what became of the row.
func (p *planner) settle(ctx context.Context, lookAt int64) error {
	r := p.r
	var lastError any
	if r.LastError != "" {
		lastError = r.LastError
	}
	_, err := p.c.ExecContext(ctx, p.d.Bind("UPDATE rabbitdelay_schedules SET planned_version = ?, plan_at = ?, next_at = ?, last_at = ?, skipped_at = ?, last_error = ? WHERE name = ?"),
		r.Version, lookAt, orNull(r.NextAt), orNull(r.LastAt), orNull(r.SkippedAt), lastError, r.Name)
	return err
}
