package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// unsentGrace is how long after its due time a task may still be unsent. A working relay needs much less. For tasks
// that were sent, the limit is the time after which the relay sends a task again.
const (
	unsentGrace = 10 * time.Second
	maxLate     = 1000 // maximum number of tasks that are read
)

// Limits for counting tasks that were sent and are not due. Tasks that are due soon or were sent just now are not
// counted, because the broker and the database are counted at different moments.
const (
	aheadDue  = time.Minute
	aheadSent = 30 * time.Second
	maxAhead  = 100_000
)

// recountAfter is the pause before the broker's messages are counted again because there are too few for the sent
// tasks. A queue reports its counts every 5 s, so a message that moves between two queues may be missing in both
// counts.
const recountAfter = 6 * time.Second

// recountPatience is how long the management API may take for the second count.
const recountPatience = 5 * time.Second

// Recount counts the broker's messages again, after a pause of recountAfter, if they are too few for the tasks that
// were sent. It needs the management API.
func Recount(ctx context.Context, cfg doctor.Config, m *live.Management, snap *doctor.Snapshot) {
	if n, _ := doctor.Missing(cfg, *snap); n == 0 || m == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(recountAfter):
	}
	one, cancel := context.WithTimeout(ctx, recountPatience)
	defer cancel()
	queues, err := m.Queues(one)
	if err != nil {
		return // keep the first count
	}
	again := snap.Live
	again.Queues = queues
	snap.Tasks.Recounted, _ = doctor.Messages(cfg, again)
}

// Late summarises the pending tasks that should have been sent or handled, and the relays that should send them. The
// parameter since is when reading the broker began.
func Late(ctx context.Context, store *taskview.Store, now, since time.Time) (doctor.Tasks, error) {
	skew, err := clockSkew(ctx, store)
	if err != nil {
		return doctor.Tasks{}, err
	}
	relays, rerr := store.Relays(ctx)
	if rerr != nil { // a user who is not allowed to read the relays still gets the tasks
		relays = nil
	}
	sum, err := late(ctx, store, now.Add(skew), since, relays)
	if err != nil {
		return sum, err
	}
	sum.Skew, sum.ReadOnly = skew, readOnly(rerr)
	readTroubles(ctx, store, &sum)
	return sum, nil
}

// readOnly returns the error that Store.Relays has returned if the database is read-only.
func readOnly(err error) string {
	if !errors.Is(err, schedule.ErrReadOnly) {
		return ""
	}
	return err.Error()
}

// clockSkew returns the database's clock minus this process's clock, or 0 if they certainly differ by a second at most.
func clockSkew(ctx context.Context, store *taskview.Store) (time.Duration, error) {
	skew, uncertainty, err := store.ClockSkew(ctx)
	if skew.Abs()-uncertainty <= doctor.DefaultClockTolerance {
		skew = 0
	}
	return skew, err
}

// standstill is how long an occurrence may be overdue and still have no task. After that, no relay is planning its
// recurring task. A relay that waits for the previous occurrence checks again within a minute.
const standstill = 3 * time.Minute

// readTroubles adds recurring tasks that create no tasks, and pending tasks that no relay will send, although they were
// neither paused nor cancelled. A list that could not be read is nil, unless it has entries that were read before the
// error.
func readTroubles(ctx context.Context, store *taskview.Store, sum *doctor.Tasks) {
	sum.Idle, sum.Unlisted, sum.Unread = nil, nil, ""
	for r, err := range store.Recurring().List(ctx, schedule.NoTx) {
		if err != nil {
			sum.Unread = err.Error()
			return
		}
		reason := r.LastError
		if reason == "" && !r.Paused && !r.NextAt.IsZero() && sum.Now.Sub(r.NextAt) > standstill {
			reason = fmt.Sprintf("the time of its occurrence at %s has passed, and there is no task for it: %s", r.NextAt.UTC().Format(time.RFC3339), sum.Relays)
		}
		if reason != "" {
			sum.Idle = append(sum.Idle, doctor.IdleRecurring{Name: r.Name, Reason: reason})
		}
	}
	if sum.Idle == nil {
		sum.Idle = []doctor.IdleRecurring{}
	}
	counts, err := store.UnknownDestinations(ctx)
	if err != nil {
		sum.Unread = err.Error()
		return
	}
	sum.Unlisted = make([]doctor.UnlistedTasks, 0, len(counts))
	for _, c := range counts {
		sum.Unlisted = append(sum.Unlisted, doctor.UnlistedTasks{Destination: c.Destination.String(), Pending: c.Pending})
	}
	slices.SortFunc(sum.Unlisted, func(a, b doctor.UnlistedTasks) int { return cmp.Compare(a.Destination, b.Destination) })
}

func late(ctx context.Context, store *taskview.Store, now, since time.Time, relays []taskview.Relay) (doctor.Tasks, error) {
	unhandledSince := now.Add(-schedule.Config{}.WithDefaults().Grace)
	sum := doctor.Tasks{Now: now, Relays: WhoSends(relays, now)}
	n := 0
	filter := schedule.Filter{Status: schedule.StatusPending, DueTo: now.Add(-unsentGrace), Limit: maxLate, WithoutBody: true, Unheld: true}
	for task, err := range store.List(ctx, schedule.NoTx, filter) { // in the order of due times
		if err != nil {
			return doctor.Tasks{}, err
		}
		n++
		switch due := task.DueSince(); {
		case !due.Before(filter.DueTo): // it was due immediately, and was written only just now
		case task.SentAt.IsZero():
			sum.Unsent++
			sum.OldestUnsent = earlier(sum.OldestUnsent, due)
			if task.LastError != "" {
				sum.LastError = task.LastError
			}
		case due.Before(unhandledSince):
			sum.Unhandled++
			sum.OldestUnhandled = earlier(sum.OldestUnhandled, due)
		}
	}
	sum.More = n == maxLate
	ahead, err := store.SentAhead(ctx, aheadDue, aheadSent+max(0, time.Since(since)), maxAhead)
	sum.Ahead, sum.AheadMore = ahead.Tasks, ahead.Tasks == maxAhead
	sum.ResendFrom, sum.ResendTo = ahead.ResendFrom, ahead.ResendTo
	return sum, err
}

const (
	answering = 3 * time.Second // limit for a database to answer at all
	recount   = 20              // a count is reused for this many times as long as it took
)

// readTasks reads the counts of the database, or returns nil if Source has no database. If the counts in Source.Before
// are younger than recount times the duration of that count, it reuses them instead of counting all tasks again.
func readTasks(ctx context.Context, src Source, at time.Time) (t *Tasks, err error) {
	store := src.Tasks
	if store == nil {
		return nil, nil
	}
	if err := store.Ping(ctx, answering); err != nil {
		return nil, err
	}
	skew, err := clockSkew(ctx, store)
	if err != nil {
		return nil, err
	}
	now := at.Add(skew)
	t = &Tasks{Skew: Span(skew), Counts: []TaskCount{}, read: at}
	t.Relays, t.unheard = store.Relays(ctx)
	if t.late, err = late(ctx, store, now, at, t.Relays); err != nil {
		return nil, err
	}
	t.late.Skew, t.late.ReadOnly = skew, readOnly(t.unheard)
	if b := src.Before; b != nil && b.Tasks != nil && at.Sub(b.Tasks.read) < recount*b.Tasks.took {
		before := b.Tasks
		t.Counts, t.due, t.read, t.took = before.Counts, before.due, before.read, before.took
		t.late.Idle, t.late.Unlisted, t.late.Unread = before.late.Idle, before.late.Unlisted, before.late.Unread
	} else if err = t.countAll(ctx, store, now); err != nil {
		return nil, err
	}
	held, err := store.Destinations(ctx, schedule.NoTx)
	if err != nil {
		return nil, err
	}
	t.Held = append([]schedule.DestinationState{}, held...)
	t.Idle, t.Unlisted = t.late.Idle, t.late.Unlisted
	t.Unsent, t.Unhandled, t.More = t.late.Unsent, t.late.Unhandled, t.late.More
	t.Overdue, err = oldest(ctx, store, now)
	return t, err
}

// mostImmediate limits how many tasks that are due at 0 are read to find the oldest of them.
const mostImmediate = 100

// oldest returns the task that has been overdue for the longest time, or nil if there is none. Tasks with the due time
// 0, which means immediately, come first in the order of the table and have been due since they were written.
func oldest(ctx context.Context, store *taskview.Store, now time.Time) (o *Overdue, err error) {
	filter := schedule.Filter{Status: schedule.StatusPending, WithoutBody: true, Unheld: true}
	first, rest := filter, filter
	first.DueTo, first.Limit = time.UnixMilli(1), mostImmediate
	rest.DueFrom, rest.DueTo, rest.Limit = time.UnixMilli(1), now, 1
	for _, f := range []schedule.Filter{first, rest} {
		for task, err := range store.List(ctx, schedule.NoTx, f) {
			if err != nil {
				return nil, err
			}
			due := task.DueSince().UTC()
			if o != nil && !due.Before(o.Due) {
				continue
			}
			o = &Overdue{
				ID: task.ID, Destination: task.Destination().String(), Due: due, Sent: !task.SentAt.IsZero(), Attempts: task.Attempts,
				LastError: task.LastError,
			}
		}
	}
	return o, nil
}

// earlier returns the earlier of two times, and ignores a if it is zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// countAll counts all tasks, which reads a whole index.
func (t *Tasks) countAll(ctx context.Context, store *taskview.Store, now time.Time) error {
	began := time.Now()
	counts, err := store.Count(ctx, schedule.NoTx, schedule.Filter{})
	if err != nil {
		return err
	}
	for _, c := range counts {
		t.Counts = append(t.Counts, TaskCount(c))
	}
	for _, within := range dueWithin {
		n, err := store.CountUpTo(ctx, schedule.NoTx, schedule.Filter{Status: schedule.StatusPending, DueFrom: now, DueTo: now.Add(within)}, 0)
		if err != nil {
			return err
		}
		t.due = append(t.due, n)
	}
	readTroubles(ctx, store, &t.late)
	t.took = time.Since(began)
	return nil
}
