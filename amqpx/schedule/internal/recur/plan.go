package recur

import (
	"context"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur/timetable"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

const (
	// ahead is the minimum time before an occurrence at which its task is created. A relay may plan a row late by up to
	// half of that without delaying a message.
	ahead = time.Minute
	// misfireAfter is how late an occurrence must be to count as missed.
	misfireAfter = time.Minute
	// mostPlanned is the maximum number of tasks that one transaction creates, not counting missed occurrences.
	mostPlanned = 1000
	// wrongPause is the pause before an invalid row is read again, in case it was corrected.
	wrongPause = time.Hour
	// never is the plan_at of a row that does not have to be planned again.
	never = math.MaxInt64
	// LargestBody is the largest body of a task in bytes. It equals the default of RabbitMQ's max_message_size since
	// 4.0.
	LargestBody = 16 << 20
)

// These values of last_error mark the tasks that this package cancels. A withdrawn task may be created again, unlike a
// task that a user has cancelled.
const (
	withdrawn = "withdrawn: the recurring task was changed"
	leftOut   = "missed: skipped by the recurring task's misfire policy"
)

// planning creates the tasks of one row, in a transaction that has locked the row.
type planning struct {
	*Planner

	c     rows.Conn
	s     *rows.Schedule
	table *timetable.Timetable
	now   time.Time
	limit error            // why this relay cannot plan the row, although another relay may be able to
	back  map[string]int64 // versions for withdrawn tasks that are created again, by task id
}

// plan brings the tasks of a row up to date. It creates the tasks that should exist by now, and withdraws tasks that
// were planned for an older version of the row. If limit is not nil, this relay cannot plan the row, although another
// relay may be able to.
func (p *Planner) plan(ctx context.Context, c rows.Conn, s *rows.Schedule) (limit, err error) {
	x := &planning{Planner: p, c: c, s: s, now: p.Poller.Now()}
	lookAt, err := x.update(ctx)
	if err != nil {
		return nil, err
	}
	return x.limit, c.Planned(ctx, s, lookAt)
}

// limited reports whether this relay cannot plan the row, although another relay may be able to.
func (p *planning) limited() bool { return p.limit != nil }

// update applies the row's rule, and returns the time at which the row must be planned again.
func (p *planning) update(ctx context.Context) (lookAt int64, err error) {
	s := p.s
	fresh, bad := s.Version != s.Planned, s.LastError != ""
	if fresh {
		if err := p.withdraw(ctx, s.Paused); err != nil {
			return 0, err
		}
	}
	readable := p.read()
	switch {
	case s.Paused:
		return never, nil
	case p.limited(): // keep the row due, so that another relay, which may be able to read it, plans it
		s.Version = s.Planned
		return min(s.PlanAt.UnixMilli(), p.now.UnixMilli()), nil
	case !readable:
		return p.now.Add(wrongPause).UnixMilli(), nil
	}
	var late []time.Time
	switch {
	case fresh, bad && s.NextAt.IsZero():
		s.NextAt = p.table.Next(p.now)
	case bad, p.now.Sub(s.PlanAt) > misfireAfter:
		if late, err = p.misfire(ctx); err != nil {
			return 0, err
		}
	}
	var list []time.Time
	if s.Overlap == OverlapSkip {
		list, lookAt, err = p.single(ctx, late)
	} else {
		list, lookAt = p.upcoming(late)
	}
	if err != nil {
		return 0, err
	}
	return lookAt, p.materialise(ctx, list)
}

// read validates the row, which another program may have written, and reports whether it can be planned. A problem that
// only this relay has, such as outdated time zones, is stored in p.limit and not as an error of the row.
func (p *planning) read() bool {
	var err error
	s := p.s
	switch {
	case s.Bad != nil:
		err = &Error{s.Name, []*rows.FieldError{s.Bad}}
	case s.BodySize > LargestBody:
		err = wrong(s, "Body", "%d bytes, expected at most %d", s.BodySize, LargestBody)
	case s.BodySize > int64(p.MaxBody):
		p.limit = wrong(s, "Body", "%d bytes, but this relay's Config.MaxBody is %d; raise MaxBody, or leave the task to another relay", s.BodySize, p.MaxBody)
		return false
	default:
		p.table, err = Check(s, LargestBody, p.CheckTask)
	}
	if err == nil {
		s.LastError = ""
		return true
	}
	if onlyZone(err) {
		p.limit = err // another relay's time zones may be newer
	} else {
		s.NextAt = time.Time{}
	}
	if reason := rows.ErrorText(err); reason != s.LastError {
		p.Log.Warn("a recurring task is invalid; correct its row or delete it", zap.String("name", s.Name), zap.Error(err))
		s.LastError = reason
	}
	return false
}

// from returns the task id of the occurrence at a time. The ids of one recurring task sort by time, so a query can
// select all later occurrences.
func (p *planning) from(at time.Time) string { return occurrenceOf(p.s, at).ID }

// withdraw cancels the tasks that are not due yet, because they will be planned again. For these tasks and for tasks
// that were withdrawn earlier, it stores in p.back the versions to use when they are created again.
//
// If all is true, it also withdraws tasks that were rescheduled by hand and whose original time has passed. If all is
// false, it keeps those tasks, because the new plan would not replace them.
func (p *planning) withdraw(ctx context.Context, all bool) (err error) {
	from := p.from(p.now.Add(-rows.MaxJitter))
	if all {
		from = p.s.Name + "@"
	}
	p.back, err = p.c.Withdraw(ctx, p.s.Name, from, withdrawn, p.now.UnixMilli())
	p.s.NextAt = time.Time{}
	if p.s.LastAt.After(p.now) {
		p.s.LastAt = time.Time{}
	}
	return err
}

// misfire applies the misfire policy to missed occurrences. It returns the occurrences for which a task must be created
// now, although they are late.
func (p *planning) misfire(ctx context.Context) ([]time.Time, error) {
	s := p.s
	cut := p.now.Add(-misfireAfter)
	keep := map[string]int{MisfireSkip: 0, MisfireOnce: 1, MisfireAll: s.MisfireLimit}[s.Misfire]
	var late []time.Time
	if !s.NextAt.IsZero() && !s.NextAt.After(cut) {
		late = p.table.Latest(s.NextAt, cut, keep+1)
		if n := len(late) - keep; n > 0 {
			s.SkippedAt, late = late[n-1], late[n:]
		}
		p.Log.Warn("occurrences of a recurring task were missed", zap.String("name", s.Name), zap.Time("first", s.NextAt),
			zap.Time("until", cut), zap.String("policy", s.Misfire), zap.Int("made_late", len(late)))
		s.NextAt = p.table.Next(cut)
	}
	if s.Misfire == MisfireAll || p.now.Sub(s.PlanAt) <= misfireAfter {
		return late, nil
	}
	ids, err := p.missed(ctx, cut)
	if err != nil || len(ids) == 0 {
		return late, err
	}
	if s.Misfire == MisfireOnce && len(late) == 0 {
		ids = ids[:len(ids)-1] // MisfireOnce runs the last missed occurrence
	}
	return late, p.leaveOut(ctx, ids)
}

// missed returns, in order, the ids of missed tasks that were created before the outage and that no handler has
// started.
func (p *planning) missed(ctx context.Context, cut time.Time) (ids []string, err error) {
	all, err := p.c.Missed(ctx, p.s.Name, p.from(p.s.PlanAt.Add(-ahead-p.s.Jitter)), cut.UnixMilli())
	for _, id := range all {
		if _, at, _ := Parse(id); p.from(at) == id { // exclude occurrences that were run by hand
			ids = append(ids, id)
		}
	}
	return ids, err
}

func (p *planning) leaveOut(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := p.c.LeaveOut(ctx, id, leftOut, p.now.UnixMilli()); err != nil {
			return err
		}
		if _, at, ok := Parse(id); ok && at.After(p.s.SkippedAt) {
			p.s.SkippedAt = at
		}
	}
	return nil
}

// upcoming returns late, followed by the occurrences that should have a task by now: all that are due within the time
// ahead, and at least the next one. lookAt is the time at which the row must be planned again.
func (p *planning) upcoming(late []time.Time) (list []time.Time, lookAt int64) {
	s := p.s
	list = late
	last := s.LastAt
	for !s.NextAt.IsZero() && (!last.After(p.now) || !s.NextAt.After(p.now.Add(ahead))) {
		if len(list)-len(late) == mostPlanned {
			return list, p.now.UnixMilli()
		}
		last = s.NextAt
		list, s.NextAt = append(list, last), p.table.Next(last)
	}
	switch {
	case s.NextAt.IsZero():
		return list, never
	case s.NextAt.Add(-ahead / 2).Before(last):
		return list, s.NextAt.Add(-ahead / 2).UnixMilli()
	}
	return list, last.UnixMilli()
}

// single is like upcoming, but for occurrences that must not overlap (OverlapSkip). It creates the next task only when
// the previous one is no longer pending. An occurrence that is due before that is skipped.
func (p *planning) single(ctx context.Context, late []time.Time) (list []time.Time, lookAt int64, err error) {
	s := p.s
	if !s.NextAt.IsZero() && !s.NextAt.After(p.now) { // if several occurrences are due, only the last one is considered
		late = append(late, p.table.Latest(s.NextAt, p.now, 1)...)
		s.NextAt = p.table.Next(p.now)
	}
	busy, err := p.pending(ctx)
	if err != nil {
		return nil, 0, err
	}
	if n := len(late); n > 1 || n == 1 && busy {
		s.SkippedAt = late[n-1]
		if !busy {
			s.SkippedAt, late = late[n-2], late[n-1:]
		}
	}
	switch {
	case busy:
		return nil, p.recheck(), nil
	case len(late) > 0:
		list = late
	case s.NextAt.IsZero():
		return nil, never, nil
	default:
		list, s.NextAt = []time.Time{s.NextAt}, p.table.Next(s.NextAt)
	}
	return list, max(rows.Millis(occurrenceOf(s, list[0]).DueAt), p.now.UnixMilli()+1), nil
}

// pending reports whether the task of the last occurrence is pending or running. It returns false if that task was
// purged or deleted.
func (p *planning) pending(ctx context.Context) (bool, error) {
	if p.s.LastAt.IsZero() {
		return false, nil
	}
	status, err := p.c.Status(ctx, p.from(p.s.LastAt))
	return status == rows.Pending || status == rows.Running, err
}

// recheck returns the time at which to check again whether the last task is still pending: soon after its due time,
// then at growing intervals, and at the time of the next occurrence.
func (p *planning) recheck() int64 {
	due := occurrenceOf(p.s, p.s.LastAt).DueAt
	if due.After(p.now) {
		return rows.Millis(due)
	}
	at := p.now.Add(min(max(p.now.Sub(due)/4, time.Second), time.Minute))
	if next := p.s.NextAt; !next.IsZero() && next.Before(at) {
		at = next
	}
	return rows.Millis(at)
}

// materialise inserts the tasks of occurrences. It replaces withdrawn tasks. Any other task that already exists stays
// unchanged, whatever its status is.
func (p *planning) materialise(ctx context.Context, list []time.Time) error {
	if len(list) == 0 {
		return nil
	}
	first := int64(never)
	var made []string
	for _, at := range list {
		o := occurrenceOf(p.s, at)
		version := int64(1)
		if v, again := p.back[o.ID]; again {
			version = v
			if err := p.c.Delete(ctx, o.ID); err != nil {
				return err
			}
		}
		inserted, err := p.c.InsertOccurrence(ctx, p.s, o.ID, rows.Millis(o.DueAt), version, p.now.UnixMilli())
		if err != nil {
			return err
		}
		if inserted {
			made = append(made, o.ID)
		}
		if at.After(p.s.LastAt) {
			p.s.LastAt = at
		}
		first = min(first, rows.Millis(o.DueAt))
	}
	p.Poller.Due(p.DB.DB, first)
	return p.c.TagOccurrences(ctx, p.s, made)
}
