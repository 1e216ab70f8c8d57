package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Schedule is a row in rabbitdelay_schedules. It has the same fields as schedule.Recurring, which documents them.
type Schedule struct {
	Name, Cron, TimeZone string
	Every                time.Duration
	Start, End           time.Time
	Jitter               time.Duration
	Misfire              string
	MisfireLimit         int
	Overlap              string
	Task                 Task

	Paused                    bool
	Origin                    string
	Version                   int64
	NextAt, LastAt, SkippedAt time.Time
	LastError                 string
	CreatedAt, UpdatedAt      time.Time

	Planned  int64 // the version that was planned last
	PlanAt   time.Time
	BodySize int64
	Bad      *FieldError // why the row cannot be read, if another program wrote an invalid value; otherwise nil
}

// FieldError describes an invalid field of a task or a schedule.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return Words(e.Field) + ": " + e.Reason }

// Words converts the name of a Go field to the words that users know from flags, settings and columns.
func Words(field string) string {
	if field == "DeliverAt" {
		return "due time"
	}
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(field[i-1])) { // ID is one word
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Upper bounds for fields of a Schedule. The columns themselves allow larger values.
const (
	MaxEvery  = 100 * 366 * 24 * time.Hour
	MaxJitter = 24 * time.Hour
)

// definition lists the columns that a caller sets, in the order of the method values.
var definition = append([]string{
	"cron", "time_zone", "every_ms", "starts_at", "ends_at", "jitter_ms", "misfire", "misfire_limit", "overlap",
	"tags", "paused", "origin",
}, names(message)...)

func (s *Schedule) values() []any {
	return append([]any{
		s.Cron, s.TimeZone, s.Every.Milliseconds(), orNull(s.Start), orNull(s.End), s.Jitter.Milliseconds(), s.Misfire, s.MisfireLimit, s.Overlap,
		asJSON(s.Task.Tags), flag(s.Paused), s.Origin,
	}, s.Task.values(message)...)
}

// flag returns the column value of a boolean.
func flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

// scheduleColumns returns the columns of a Schedule in the order that scanSchedule expects. The parameter body is the
// column of the body, or NULL to leave it out.
func (c Conn) scheduleColumns(body string) string {
	return "name, cron, time_zone, every_ms, starts_at, ends_at, jitter_ms, misfire, misfire_limit, overlap, tags, paused, origin, version, " +
		"created_at, updated_at, next_at, last_at, skipped_at, last_error, planned_version, plan_at, " + c.bodySize() + ", " +
		strings.Replace(carried, " body,", " "+body+",", 1)
}

func scanSchedule(scan scanner) (*Schedule, error) {
	s := &Schedule{}
	t := &s.Task
	var every, jitter, created, updated, planAt int64
	var paused int
	var start, end, next, last, skipped sql.NullInt64
	var tags, lastError sql.NullString
	err := scan(append([]any{
		&s.Name, &s.Cron, &s.TimeZone, &every, &start, &end, &jitter, &s.Misfire, &s.MisfireLimit, &s.Overlap, &tags, &paused, &s.Origin, &s.Version,
		&created, &updated, &next, &last, &skipped, &lastError, &s.Planned, &planAt, &s.BodySize,
	}, t.cells(message)...)...)
	if err != nil {
		return nil, err
	}
	raw := t.headers
	t.headers = sql.NullString{}
	s.Paused, s.LastError = paused != 0, lastError.String
	s.Start, s.End = orZero(start), orZero(end)
	s.NextAt, s.LastAt, s.SkippedAt = orZero(next), orZero(last), orZero(skipped)
	s.CreatedAt, s.UpdatedAt, s.PlanAt = time.UnixMilli(created), time.UnixMilli(updated), time.UnixMilli(planAt)
	if every > MaxEvery.Milliseconds() || jitter > MaxJitter.Milliseconds() {
		s.Bad = &FieldError{"Every", fmt.Sprintf("every_ms %d and jitter_ms %d, expected at most %d and %d", every, jitter, MaxEvery.Milliseconds(), MaxJitter.Milliseconds())}
		return s, nil
	}
	s.Every, s.Jitter = time.Duration(every)*time.Millisecond, time.Duration(jitter)*time.Millisecond
	if raw.Valid {
		t.Headers, err = headersIn(raw.String)
		if err == nil && t.Headers == nil {
			err = errors.New("null")
		}
		if err != nil {
			s.Bad = &FieldError{"Headers", badHeaders(err)}
		}
	}
	if tags.String != "" {
		if t.Tags, err = tagsIn(tags.String); err != nil {
			s.Bad = &FieldError{"Tags", fmt.Sprintf("column tags: expected a JSON array of strings: %v", err)}
		}
	}
	return s, nil
}

// tagsIn decodes the column tags. encoding/json alone would read a null as an empty string.
func tagsIn(column string) ([]string, error) {
	var values []*string
	if err := json.Unmarshal([]byte(column), &values); err != nil {
		return nil, err
	}
	var tags []string
	for i, v := range values {
		if v == nil {
			return nil, fmt.Errorf("element %d is null", i)
		}
		tags = append(tags, *v)
	}
	return tags, nil
}

// Schedule reads the schedule with the given name. The error is sql.ErrNoRows if it does not exist.
func (c Conn) Schedule(ctx context.Context, name string) (*Schedule, error) {
	return scanSchedule(func(dest ...any) error {
		return c.one(ctx, "SELECT "+c.scheduleColumns("body")+" FROM rabbitdelay_schedules WHERE name = ?", []any{name}, dest...)
	})
}

// Schedules reads up to n schedules whose names sort after the given name, sorted by name and without bodies.
func (c Conn) Schedules(ctx context.Context, after string, n int) ([]*Schedule, error) {
	return c.schedules(ctx, fmt.Sprintf("SELECT %s FROM rabbitdelay_schedules WHERE name > ? ORDER BY name LIMIT %d", c.scheduleColumns("NULL"), n), after)
}

func (c Conn) schedules(ctx context.Context, query string, args ...any) (list []*Schedule, err error) {
	err = c.each(ctx, query, args, func(scan scanner) error {
		s, err := scanSchedule(scan)
		if err == nil {
			list = append(list, s)
		}
		return err
	})
	return list, err
}

// ScheduleNames returns the sorted names of the schedules with the given origin.
func (c Conn) ScheduleNames(ctx context.Context, origin string) ([]string, error) {
	return c.texts(ctx, "SELECT name FROM rabbitdelay_schedules WHERE origin = ? ORDER BY name", origin)
}

// InsertSchedule inserts a schedule unless there is already one with that name, and reports whether it did.
func (c Conn) InsertSchedule(ctx context.Context, s *Schedule, now int64) (bool, error) {
	values := append([]any{s.Name, now, now}, s.values()...)
	query := "INSERT INTO rabbitdelay_schedules (name, created_at, updated_at, " + strings.Join(definition, ", ") + ") VALUES (" + marks(len(values)) + ")"
	if !c.mysql() { // avoid a duplicate key error, which would abort the caller's transaction in PostgreSQL
		query += " ON CONFLICT (name) DO NOTHING"
	}
	inserted, err := c.changed(ctx, query, values...)
	if c.mysql() && sqldb.Duplicate(err) {
		return false, nil
	}
	return inserted, err
}

// LockSchedule raises the version of a schedule and reads its row. The update locks the row against relays and other
// writers until the transaction ends.
func (c Conn) LockSchedule(ctx context.Context, name string, now int64) (*Schedule, error) {
	if _, err := c.exec(ctx, "UPDATE rabbitdelay_schedules SET version = version + 1, updated_at = ? WHERE name = ?", now, name); err != nil {
		return nil, err
	}
	return c.Schedule(ctx, name)
}

// WriteSchedule writes the columns that a caller sets.
func (c Conn) WriteSchedule(ctx context.Context, s *Schedule) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_schedules SET "+strings.Join(definition, " = ?, ")+" = ? WHERE name = ?", append(s.values(), s.Name)...)
	return err
}

// PauseSchedule pauses or resumes a schedule. It writes no other column, so that even an unreadable row can be
// paused.
func (c Conn) PauseSchedule(ctx context.Context, name string, paused bool) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_schedules SET paused = ? WHERE name = ?", flag(paused), name)
	return err
}

// DeleteSchedule deletes the schedule with the given name, but none of its tasks.
func (c Conn) DeleteSchedule(ctx context.Context, name string) error {
	_, err := c.exec(ctx, "DELETE FROM rabbitdelay_schedules WHERE name = ?", name)
	return err
}

// Planned records how far a relay has planned a row, and when to plan it again.
func (c Conn) Planned(ctx context.Context, s *Schedule, lookAt int64) error {
	var lastError any
	if s.LastError != "" {
		lastError = s.LastError
	}
	_, err := c.exec(ctx, "UPDATE rabbitdelay_schedules SET planned_version = ?, plan_at = ?, next_at = ?, last_at = ?, skipped_at = ?, last_error = ? WHERE name = ?",
		s.Version, lookAt, orNull(s.NextAt), orNull(s.LastAt), orNull(s.SkippedAt), lastError, s.Name)
	return err
}

// Blame records in a row why the database refuses the row's tasks, and postpones its planning to lookAt. It does
// nothing if the version of the row has changed.
func (c Conn) Blame(ctx context.Context, s *Schedule, why error, lookAt time.Time) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_schedules SET last_error = ?, plan_at = ? WHERE name = ? AND version = ?", ErrorText(why), lookAt.UnixMilli(), s.Name, s.Version)
	return err
}

// without returns a clause that excludes the rows with the given names.
func without(names []string) *clause {
	w := &clause{}
	if len(names) > 0 {
		w.and("name NOT IN ("+marks(len(names))+")", anys(names)...)
	}
	return w
}

// NextPlan returns the earliest plan_at of all rows except the given ones. It returns false if there is none.
func (c Conn) NextPlan(ctx context.Context, except []string) (int64, bool, error) {
	var at sql.NullInt64
	where := without(except)
	err := c.one(ctx, "SELECT MIN(plan_at) FROM rabbitdelay_schedules"+where.String(), where.args, &at)
	return at.Int64, at.Valid, err
}

// ClaimSchedule locks the due row with the earliest plan_at until the transaction ends, and reads it without its body.
// It returns nil if no row is due.
func (c Conn) ClaimSchedule(ctx context.Context, now int64, except []string) (*Schedule, error) {
	where := without(except)
	where.and("plan_at <= ?", now)
	pick := "FROM rabbitdelay_schedules" + where.String() + " ORDER BY plan_at LIMIT 1"
	columns := c.scheduleColumns("NULL")
	query := "SELECT " + columns + " " + pick + c.lock(SkipLocked)
	if c.sqlite() { // the statement acquires the write lock immediately; see WriteFirst
		query = "UPDATE rabbitdelay_schedules SET plan_at = plan_at WHERE name IN (SELECT name " + pick + ") RETURNING " + columns
	}
	list, err := c.schedules(ctx, query, where.args...)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// Withdraw cancels the tasks of a schedule that are not due yet, except those whose ids sort before fromID, and stores
// the reason in last_error. The tasks get a new version. No message has that version, and a relay that is publishing
// the old version does not mark the row. Withdraw returns the versions, by id, of all tasks that were withdrawn now or
// earlier.
func (c Conn) Withdraw(ctx context.Context, name, fromID, reason string, now int64) (map[string]int64, error) {
	to := name + "@" + afterAll
	if _, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'cancelled', version = version + 1, last_error = ?, finished_at = ?, updated_at = ? "+
		"WHERE id >= ? AND id < ? AND status = 'pending' AND due_at > ?", reason, now, now, fromID, to, now); err != nil {
		return nil, err
	}
	versions := map[string]int64{}
	// A locking read also sees what other transactions have committed since this one began.
	query := "SELECT id, version FROM rabbitdelay_tasks WHERE id >= ? AND id < ? AND status = 'cancelled' AND last_error = ?" + c.lock(Exclusive)
	err := c.each(ctx, query, []any{fromID, to, reason}, func(scan scanner) error {
		var id string
		var version int64
		err := scan(&id, &version)
		versions[id] = version
		return err
	})
	return versions, err
}

// Missed returns the sorted ids of a schedule's tasks that were due no later than cut and that no handler has started.
// It leaves out ids that sort before fromID, and locked rows, on which a handler may be working.
func (c Conn) Missed(ctx context.Context, name, fromID string, cut int64) ([]string, error) {
	return c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE id >= ? AND id < ? AND status = 'pending' AND attempts = 0 AND due_at <= ? "+
		"AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects WHERE task_id = id) ORDER BY id"+c.lock(SkipLocked), fromID, name+"@"+afterAll, cut)
}

// LeaveOut cancels a pending task with a reason in last_error.
func (c Conn) LeaveOut(ctx context.Context, id, reason string, now int64) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET status = 'cancelled', last_error = ?, finished_at = ?, updated_at = ? WHERE id = ? AND status = 'pending'", reason, now, now, id)
	return err
}

// Delete deletes a task.
func (c Conn) Delete(ctx context.Context, id string) error {
	_, err := c.exec(ctx, "DELETE FROM rabbitdelay_tasks WHERE id = ?", id)
	return err
}

// carried lists the columns that a task inherits from its schedule.
var carried = namesOf(message)

// InsertOccurrence inserts a task of a schedule unless the id exists, and reports whether it did.
func (c Conn) InsertOccurrence(ctx context.Context, s *Schedule, id string, due, version, now int64) (bool, error) {
	values, exists := "?, ?, ?, ?, ?", "ON CONFLICT (id) DO NOTHING"
	switch {
	case c.mysql():
		exists = "ON DUPLICATE KEY UPDATE rabbitdelay_tasks.id = rabbitdelay_tasks.id"
	case c.postgres(): // without a cast, PostgreSQL gives the parameters the type text
		values = "CAST(? AS text), CAST(? AS bigint), CAST(? AS bigint), CAST(? AS bigint), CAST(? AS bigint)"
	}
	return c.changed(ctx, "INSERT INTO rabbitdelay_tasks (id, due_at, version, created_at, updated_at, "+carried+") SELECT "+values+", "+carried+
		" FROM rabbitdelay_schedules WHERE name = ? "+exists, id, due, version, now, now, s.Name)
}

// TagOccurrences writes the tags of a schedule for tasks that have just been created from it.
func (c Conn) TagOccurrences(ctx context.Context, s *Schedule, ids []string) error {
	if len(ids) == 0 || len(s.Task.Tags) == 0 {
		return nil
	}
	list := make([]*Task, len(ids))
	for i, id := range ids {
		list[i] = &Task{Content: Content{ID: id, Tags: s.Task.Tags}}
	}
	return c.writeTags(ctx, list, Replace)
}

// LastRuns reads, for each of the given schedules, the last task that is done, failed or expired, without its body.
func (c Conn) LastRuns(ctx context.Context, names []string) ([]*Task, error) {
	parts, args := make([]string, len(names)), make([]any, 0, 2*len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("SELECT * FROM (SELECT %s FROM rabbitdelay_tasks WHERE id >= ? AND id < ? AND status IN ('%s', '%s', '%s') ORDER BY id DESC LIMIT 1) AS run%d", bodiless, Done, Failed, Expired, i)
		args = append(args, name+"@", name+"A") // all ids that begin with name@, because "A" is the character after "@"
	}
	return c.tasks(ctx, strings.Join(parts, " UNION ALL "), args)
}
