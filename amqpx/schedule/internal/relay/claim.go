package relay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Look finds lanes with tasks. It returns the unpaused lanes whose first row is due at the time until or earlier. The
// result next is the earliest due time in the other lanes, or 0 if there are none. It is always 0 outside of virtual
// time, where the query does not find the other lanes.
func (r *Relay) Look(ctx context.Context, p rows.Purpose, until int64) (due []rows.Waiting, next int64, err error) {
	return r.look(ctx, p, until, r.Poller.Horizon(until))
}

// look is like Look, and finds the lanes whose first row is due by the time limit.
func (r *Relay) look(ctx context.Context, p rows.Purpose, until, limit int64) (due []rows.Waiting, next int64, err error) {
	c, err := r.DB.Conn(ctx)
	if err != nil {
		return nil, 0, err
	}
	g, err := r.readGates(ctx, c)
	if err != nil {
		return nil, 0, err
	}
	lanes, err := c.Lanes(ctx, p, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("finding tasks: %w", err)
	}
	lanes = slices.DeleteFunc(lanes, func(w rows.Waiting) bool { return g[w.Lane] != nil && g[w.Lane].Paused() })
	due, next = divide(lanes, until)
	return due, next, nil
}

// divide returns the lanes whose first row is due by now, and the earliest due time in the other lanes, or 0 if there
// are no other lanes.
func divide(lanes []rows.Waiting, now int64) (due []rows.Waiting, next int64) {
	due = slices.DeleteFunc(lanes, func(w rows.Waiting) bool {
		if w.First > now && (next == 0 || w.First < next) {
			next = w.First
		}
		return w.First > now
	})
	return due, next
}

// Take claims up to a batch of the tasks that are due within the horizon. It claims nothing while the batches that are
// being published contain too many bytes.
func (r *Relay) Take(ctx context.Context) ([]*rows.Task, error) { return r.take(ctx, true) }

// take is like Take. If all is false, it claims only what the plan says; see plan.go.
func (r *Relay) take(ctx context.Context, all bool) ([]*rows.Task, error) {
	select {
	case r.claiming <- struct{}{}:
		defer func() { <-r.claiming }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !all {
		if err := r.pace(ctx); err != nil {
			return nil, err
		}
	}
	if r.publishingBytes.Load() >= int64(r.Workers+1)*int64(r.BatchBytes) {
		return nil, nil
	}
	r.opens.Set(0)
	p := r.plan(r.Poller.Now(), all)
	lanes, beyond, err := r.look(ctx, rows.ToSend, p.until, r.Poller.Horizon(p.until+2*r.PollInterval.Milliseconds()))
	if err != nil {
		return nil, err
	}
	if err := r.admitBurst(ctx, p, lanes); err != nil {
		return nil, err
	}
	now, g := r.Poller.Now(), r.known()
	lanes, again := g.gated(lanes, now)
	r.opens.Set(again)
	for _, w := range turns(lanes, r.got) {
		p.add(w, r.admissible(w.Lane, g, p.until, now), g.limited(w.Lane, now), r.Batch)
	}
	requests := p.requests()
	r.next.Set(r.nextPoll(p, beyond))
	var list []*rows.Task
	if len(requests) > 0 {
		var admitted *admission
		if list, admitted, err = r.claim(ctx, rows.ToSend, requests); err == nil {
			r.opens.Set(earlier(again, admitted.nextPoll()))
		}
	}
	if err == nil && p.regular && len(lanes) > 0 && (len(requests) == 0 || !r.more.Load()) {
		r.regular.Set(now.Add(r.PollInterval).UnixMilli())
	}
	if len(list) == 0 {
		r.idled = time.Now()
	}
	clear(r.got)
	for _, t := range list {
		r.got[t.Lane()]++
	}
	return list, err
}

// turns sorts lanes by how many tasks they got in the last claim, fewest first. Lanes that got the same number are
// sorted by the due time of their first task.
func turns(list []rows.Waiting, got map[rows.Lane]int) []rows.Waiting {
	return slices.SortedFunc(slices.Values(list), func(a, b rows.Waiting) int {
		return cmp.Or(cmp.Compare(got[a.Lane], got[b.Lane]), cmp.Compare(a.First, b.First),
			cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Exchange, b.Exchange))
	})
}

// Claim claims up to a batch of tasks for the duration of the lease. Each request gets its share, beginning with the
// tasks that are due first. Shares that a request does not use go to the other requests.
func (r *Relay) Claim(ctx context.Context, p rows.Purpose, requests []rows.ClaimRequest) ([]*rows.Task, error) {
	list, _, err := r.claim(ctx, p, requests)
	return list, err
}

func (r *Relay) claim(ctx context.Context, p rows.Purpose, requests []rows.ClaimRequest) (list []*rows.Task, a *admission, err error) {
	// The end of ctx fails the next statement. The transaction itself ends later, so that its session can be restored.
	after, cancel := lingering(ctx)
	defer cancel()
	err = r.DB.Transact(after, func(c rows.Conn) (err error) {
		if err := c.WriteFirst(ctx); err != nil {
			return err
		}
		a = newAdmission(r.Poller.Now(), requests)
		defer func() {
			if released := a.release(after, c); err == nil {
				err = released
			}
		}()
		if err := r.admit(ctx, c, a); err != nil {
			return err
		}
		candidates, err := r.choose(ctx, c, p, a.requests)
		if err != nil {
			return err
		}
		full := len(candidates) == r.Batch
		candidates = a.keep(candidates)
		if list = nil; len(candidates) > 0 {
			if list, err = c.Claim(ctx, fitting(int64(r.BatchBytes), candidates), r.Poller.Now().Add(r.Lease).UnixMilli()); err != nil {
				return err
			}
			slices.SortFunc(list, func(a, b *rows.Task) int {
				return cmp.Or(a.DeliverAt.Compare(b.DeliverAt), cmp.Compare(a.ID, b.ID))
			})
		}
		if p == rows.ToSend {
			r.more.Store(full || len(candidates) > len(list))
		}
		return a.spend(ctx, c, list)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("claiming tasks: %w", err)
	}
	return list, a, nil
}

// choose selects rows. Requests for tasks that are due later get what the other requests leave of the batch, so that
// they delay no task while the relay is overloaded.
func (r *Relay) choose(ctx context.Context, c rows.Conn, p rows.Purpose, requests []rows.ClaimRequest) (candidates []rows.Candidate, err error) {
	urgent := r.Poller.Now().Add(sendAhead).UnixMilli()
	for _, later := range []bool{false, true} {
		most := make([]int, len(requests))
		for i, w := range requests {
			if later == (w.After > urgent) {
				most[i] = w.Most
			}
		}
		more, err := r.share(ctx, c, p, requests, most, r.Batch-len(candidates))
		if err != nil {
			return nil, err
		}
		candidates = append(candidates, more...)
	}
	return candidates, nil
}

// share selects up to n rows in two rounds, and up to most[i] of the request i. In the first round each request gets
// its share. In the second round requests with more rows get the shares that the others have not used.
func (r *Relay) share(ctx context.Context, c rows.Conn, p rows.Purpose, requests []rows.ClaimRequest, most []int, n int) (candidates []rows.Candidate, err error) {
	now := r.Poller.Now().UnixMilli()
	got := make([]int, len(requests))
	for range 2 {
		limits := shares(n-len(candidates), got, most)
		more, err := c.Candidates(ctx, p, requests, got, limits, now)
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			break
		}
		candidates = append(candidates, more...)
		for _, x := range more {
			got[x.Request]++
			limits[x.Request]--
			most[x.Request]--
		}
		for i, left := range limits {
			if left > 0 {
				most[i] = 0 // the lane has no more rows
			}
		}
	}
	return candidates, nil
}

// endLate marks the claimed tasks that have expired, and returns the others.
func (r *Relay) endLate(ctx context.Context, list []*rows.Task) ([]*rows.Task, error) {
	now := r.Poller.Now()
	var over, left []*rows.Task
	for _, t := range list {
		if isLate(t, now) {
			over = append(over, t)
		} else {
			left = append(left, t)
		}
	}
	if len(over) == 0 {
		return left, nil
	}
	return left, r.settle(ctx, over, rows.EndLate(now))
}

// isLate reports whether a task has expired. ExpiresAfter counts from the due time, or from the
// creation of a task that was due immediately.
func isLate(t *rows.Task, now time.Time) bool {
	from := t.DeliverAt
	if from.UnixMilli() == 0 {
		from = t.CreatedAt
	}
	return t.ExpiresAfter > 0 && now.Sub(from) >= t.ExpiresAfter
}
