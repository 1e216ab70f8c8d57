package rows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Lane is a destination that claims treat as a unit: a queue, or an exchange with all its routing keys.
type Lane struct{ Queue, Exchange string }

// Lane returns the lane of the task.
func (t *Task) Lane() Lane { return Lane{t.Queue, t.Exchange} }

// Waiting is a lane that has tasks to send.
type Waiting struct {
	Lane

	First int64 // the earliest due_at or, with ToResend, resend_at of its rows
}

// Purpose is the purpose of a claim: to send tasks for the first time (relay), or to send them again (sweeper).
type Purpose int

// The purposes of a claim.
const (
	ToSend   Purpose = iota // never sent in this version
	ToResend                // sent, and still pending
)

// from returns the FROM and WHERE clauses for a purpose, with the hint for the index that serves it. The columns of the
// index are queue, exchange and the time. MySQL has one index for both purposes.
func (c Conn) from(p Purpose) string {
	if p == ToResend {
		return c.tasksBy("claim", "resend") + " WHERE status = 'pending' AND resend_at IS NOT NULL"
	}
	return c.tasksBy("claim", "claim") + " WHERE status = 'pending' AND resend_at IS NULL"
}

// instant returns the expression by which the rows of a lane are ordered.
func (c Conn) instant(p Purpose) string {
	switch {
	case p == ToResend:
		return "resend_at"
	case c.postgres():
		return "due_at + 0" // written as in the index on this expression; the migration explains why
	}
	return "due_at"
}

// Lanes returns the lanes that have a row to send no later than until. The query needs a few index lookups for each
// lane, however many rows are waiting.
func (c Conn) Lanes(ctx context.Context, p Purpose, until int64) (list []Waiting, err error) {
	err = c.each(ctx, c.lanesQuery(p), []any{until}, func(scan scanner) error {
		var w Waiting
		err := scan(&w.Queue, &w.Exchange, &w.First)
		list = append(list, w)
		return err
	})
	return list, err
}

// lanesQuery returns a recursive query that uses the index to jump from each lane to the next. MySQL does that
// automatically for a GROUP BY of the index's first columns, but not in a recursive query.
func (c Conn) lanesQuery(p Purpose) string {
	const columns = "queue, exchange, first FROM (SELECT queue, exchange, "
	from, instant := c.from(p), c.instant(p)
	if c.mysql() {
		return "SELECT " + columns + "MIN(" + instant + ") AS first FROM " + from + " GROUP BY status, queue, exchange) AS lanes WHERE first <= ?"
	}
	next := func(name, after, within string) string {
		return fmt.Sprintf("(SELECT %s FROM %s%s AND %s > %s ORDER BY %s LIMIT 1)", name, from, within, name, after, name)
	}
	names := func(table, name, within string) string {
		return fmt.Sprintf("%s (name) AS (SELECT %s UNION ALL SELECT %s FROM %s WHERE name IS NOT NULL)",
			table, next(name, "''", within), next(name, table+".name", within), table)
	}
	first := fmt.Sprintf("(SELECT %s FROM %s AND rabbitdelay_tasks.queue = lanes.queue AND rabbitdelay_tasks.exchange = lanes.exchange ORDER BY %s LIMIT 1) AS first",
		instant, from, instant)
	return "WITH RECURSIVE " + names("queues", "queue", "") + ", " + names("exchanges", "exchange", " AND queue = ''") +
		" SELECT " + columns + first + " FROM (SELECT name AS queue, '' AS exchange FROM queues WHERE name IS NOT NULL" +
		" UNION ALL SELECT '', name FROM exchanges WHERE name IS NOT NULL) AS lanes) AS firsts WHERE first <= ?"
}

// ClaimRequest is a request to claim rows of a lane.
type ClaimRequest struct {
	Lane

	Until     int64    // only rows due at or before this time
	After     int64    // only rows due after this time; 0 for all
	Most      int      // the largest number of rows
	Keys      []string // only these routing keys; empty for all
	OtherKeys []string // excludes these routing keys
	SendsLess int      // only rows that were sent fewer times than this; 0 for all
}

// Candidate is a row that may be claimed.
type Candidate struct {
	Request int   // the index of its request
	ID      any   // the id in the type that the driver returned
	Size    int64 // size of the body and the headers in bytes
}

// narrow returns the conditions of a request on routing keys and sends.
func (w ClaimRequest) narrow() *clause {
	more := &clause{}
	if n := len(w.Keys); n > 0 {
		more.and("routing_key IN ("+marks(n)+")", anys(w.Keys)...)
	}
	if n := len(w.OtherKeys); n > 0 {
		more.and("routing_key NOT IN ("+marks(n)+")", anys(w.OtherKeys)...)
	}
	if w.SendsLess > 0 {
		more.and("sends < ?", w.SendsLess)
	}
	return more
}

// Candidates locks up to limits[i] rows of each request i, beginning with those that are due first, and skips the first
// skip[i] rows. It leaves out rows whose claim has not ended at the time now, and rows that another transaction has
// locked, such as a handler's.
func (c Conn) Candidates(ctx context.Context, p Purpose, requests []ClaimRequest, skip, limits []int, now int64) (candidates []Candidate, err error) {
	instant := c.instant(p)
	var parts []string
	var args []any
	for i, w := range requests {
		if limits[i] <= 0 {
			continue
		}
		more := w.narrow()
		if w.After > 0 {
			more.and(instant+" > ?", w.After)
		}
		condition := strings.Join(append([]string{""}, more.conditions...), " AND ")
		parts = append(parts, fmt.Sprintf("SELECT %d AS lane, id, size FROM (SELECT id, LENGTH(body) + COALESCE(LENGTH(headers), 0) AS size FROM %s AND queue = ? AND exchange = ? AND %s <= ? AND claimed_until <= ?%s ORDER BY %s LIMIT ? OFFSET ?%s) AS picked",
			i, c.from(p), instant, condition, instant, c.lock(SkipLocked)))
		args = append(append(args, w.Queue, w.Exchange, w.Until, now), append(more.args, limits[i], skip[i])...)
	}
	if len(parts) == 0 {
		return nil, nil
	}
	err = c.each(ctx, strings.Join(parts, " UNION ALL "), args, func(scan scanner) error {
		var x Candidate
		err := scan(&x.Request, &x.ID, &x.Size)
		if b, ok := x.ID.([]byte); ok && !c.sqlite() {
			x.ID = string(b)
		}
		candidates = append(candidates, x)
		return err
	})
	return candidates, err
}

// Claim gives the rows of the candidates a lease that ends at the given time, and reads the rows.
func (c Conn) Claim(ctx context.Context, candidates []Candidate, until int64) ([]*Task, error) {
	which := make([]any, len(candidates))
	for i, p := range candidates {
		which[i] = p.ID
	}
	condition, args, err := c.anyOf(which)
	if err != nil {
		return nil, err
	}
	update := "UPDATE rabbitdelay_tasks SET claimed_until = ? WHERE id " + condition
	var list []*Task
	if c.mysql() {
		if _, err := c.exec(ctx, update, append([]any{until}, args...)...); err != nil {
			return nil, err
		}
		list, err = c.tasks(ctx, "SELECT "+taskColumns+" FROM rabbitdelay_tasks WHERE id "+condition, args)
	} else {
		list, err = c.tasks(ctx, update+" RETURNING "+taskColumns, append([]any{until}, args...))
	}
	for _, t := range list {
		t.Lease = until
	}
	return list, err
}

// MarkSent records a confirmed publish. If resend_at is already later, for example because a handler has failed, it
// stays the same. The parameter pauses contains the pause before a task is sent again, indexed by the number of times
// that it was sent before.
func MarkSent(now time.Time, pauses []time.Duration) Assignment {
	var cases strings.Builder
	last := len(pauses) - 1
	for n, pause := range pauses[:max(last, 1)] { // a CASE needs at least one WHEN
		fmt.Fprintf(&cases, " WHEN %d THEN %d", n, pause.Milliseconds())
	}
	again := fmt.Sprintf("(CASE WHEN due_at > ? THEN due_at ELSE ? END) + (CASE sends%s ELSE %d END)", cases.String(), pauses[last].Milliseconds())
	// The pause depends on the old value of sends. MySQL assigns from left to right, so resend_at must come before sends.
	ms := now.UnixMilli()
	return Assignment{
		set: "resend_at = CASE WHEN resend_at > " + again + " THEN resend_at ELSE " + again + " END, " +
			"sent_at = ?, sends = sends + 1, send_failures = 0, claimed_until = 0, " +
			"last_error = CASE WHEN attempts = 0 THEN NULL ELSE last_error END",
		args: []any{ms, ms, ms, ms, ms},
	}
}

// GiveBack releases tasks that could not be sent, and counts the failure. They can be claimed again at the given time.
func GiveBack(cause string, now, until time.Time) Assignment {
	return Assignment{
		set:  "last_error = ?, updated_at = ?, send_failures = send_failures + 1, claimed_until = ?",
		args: []any{cause, now.UnixMilli(), until.UnixMilli()}, condition: stillPending,
	}
}

// Postpone releases tasks that the relay has not tried to send. They can be claimed again at the given time.
func Postpone(until time.Time) Assignment {
	return Assignment{set: "claimed_until = ?", args: []any{until.UnixMilli()}}
}

// FailUnsendable fails tasks that can never be sent.
func FailUnsendable(cause string, now time.Time) Assignment {
	return Assignment{
		set:  "status = 'failed', finished_at = ?, updated_at = ?, claimed_until = 0, send_failures = send_failures + 1, last_error = ?",
		args: []any{now.UnixMilli(), now.UnixMilli(), cause}, condition: stillPending,
	}
}

// EndLate expires tasks that the relay did not send in time.
func EndLate(now time.Time) Assignment {
	return Assignment{
		set:  "status = 'expired', finished_at = ?, updated_at = ?, claimed_until = 0",
		args: []any{now.UnixMilli(), now.UnixMilli()}, condition: stillPending,
	}
}

// Settle changes the claimed tasks that are not locked and still have the version and the lease of their claim. It
// returns the ids of the tasks that are locked or no longer exist. If another program has deleted a task and inserted a
// new one with the same id, the new task may have the same version, but it does not have the lease.
func (c Conn) Settle(ctx context.Context, version, lease int64, ids []string, a Assignment) (held []string, err error) {
	condition, which, err := c.anyOf(anys(ids))
	if err != nil {
		return nil, err
	}
	update := "UPDATE rabbitdelay_tasks SET " + a.set + " WHERE version = ? AND claimed_until = ?"
	if a.condition != "" {
		update += " AND " + a.condition
	}
	args := append(slices.Clone(a.args), version, lease)
	find := "SELECT id FROM rabbitdelay_tasks WHERE id " + condition + c.lock(SkipLocked)
	free := ids
	switch {
	case c.postgres():
		free, err = c.texts(ctx, "WITH free AS ("+find+"), settled AS ("+update+" AND id = ANY (ARRAY (SELECT id FROM free))) SELECT id FROM free", append(which, args...)...)
		return others(ids, free), err
	case c.mysql():
		if free, err = c.texts(ctx, find, which...); err != nil || len(free) == 0 {
			return ids, err
		}
	}
	_, err = c.exec(ctx, update+" AND id IN ("+marks(len(free))+")", append(args, anys(free)...)...)
	return others(ids, free), err
}

// others returns the ids that the list some does not contain.
func others(ids, some []string) (list []string) {
	among := make(map[string]bool, len(some))
	for _, id := range some {
		among[id] = true
	}
	for _, id := range ids {
		if !among[id] {
			list = append(list, id)
		}
	}
	return list
}

// FailUnreadable fails a task whose row cannot be read, whatever its version and the type of its id.
func (c Conn) FailUnreadable(ctx context.Context, id, cause string, now int64) error {
	const fail = "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = ?, updated_at = ?, claimed_until = 0, last_error = ? WHERE status = 'pending' AND id IN "
	query, args := fail+"(?)", []any{now, now, cause, id}
	if c.sqlite() {
		query, args = fail+"(?, ?)", append(args, []byte(id))
	}
	_, err := c.exec(ctx, query, args...)
	return err
}
