package relay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Look returns the lanes, except paused ones, whose first row is due by until, and the earliest
// due time of the other lanes (0 for none). With a virtual clock, next considers all lanes.
func (r *Relay) Look(ctx context.Context, p rows.Purpose, until int64) (due []rows.Waiting, next int64, err error) {
	c, err := r.DB.Conn(ctx)
	if err != nil {
		return nil, 0, err
	}
	g, err := r.readGates(ctx, c)
	if err != nil {
		return nil, 0, err
	}
	lanes, err := c.Lanes(ctx, p, r.Pace.Horizon(until))
	if err != nil {
		return nil, 0, fmt.Errorf("looking for tasks: %w", err)
	}
	lanes = slices.DeleteFunc(lanes, func(w rows.Waiting) bool { return g[w.Lane] != nil && g[w.Lane].Paused() })
	due, next = divide(lanes, until)
	return due, next, nil
}

// divide returns the lanes whose first row is due by now, and the earliest due time of the other
// lanes, 0 for none.
func divide(lanes []rows.Waiting, now int64) (due []rows.Waiting, next int64) {
	due = slices.DeleteFunc(lanes, func(w rows.Waiting) bool {
		if w.First > now && (next == 0 || w.First < next) {
			next = w.First
		}
		return w.First > now
	})
	return due, next
}

// Take looks for lanes and claims up to a batch of their tasks. It claims nothing while too many
// bytes are being published.
func (r *Relay) Take(ctx context.Context) ([]*rows.Task, error) {
	select {
	case r.claiming <- struct{}{}:
		defer func() { <-r.claiming }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.aloft.Load() >= int64(r.Workers+1)*int64(r.BatchBytes) {
		return nil, nil
	}
	r.opens.Set(0)
	until := r.Pace.Now().Add(r.Horizon).UnixMilli()
	lanes, next, err := r.Look(ctx, rows.ToSend, until)
	if err != nil {
		return nil, err
	}
	now, g := r.Pace.Now(), r.known()
	lanes, again := g.gated(lanes, now)
	if len(lanes) > 0 {
		next = 0 // tasks that cannot be claimed now are looked for at the usual interval
	}
	r.ahead.Set(next)
	r.opens.Set(again)
	if len(lanes) == 0 {
		return nil, nil
	}
	var wishes []rows.Wish
	for _, w := range turns(lanes, r.got) {
		wishes = append(wishes, r.admissible(w.Lane, g, until, now)...)
	}
	list, admitted, err := r.claim(ctx, rows.ToSend, wishes)
	if err == nil {
		r.opens.Set(earlier(again, admitted.again()))
	}
	clear(r.got)
	for _, t := range list {
		r.got[t.Lane()]++
	}
	return list, err
}

// turns sorts lanes by how many tasks they got in the last claim, fewest first. Among lanes with
// the same number, the one that has waited longest comes first.
func turns(list []rows.Waiting, got map[rows.Lane]int) []rows.Waiting {
	return slices.SortedFunc(slices.Values(list), func(a, b rows.Waiting) int {
		return cmp.Or(cmp.Compare(got[a.Lane], got[b.Lane]), cmp.Compare(a.First, b.First),
			cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Exchange, b.Exchange))
	})
}

// Claim claims up to a batch of tasks for the duration of the lease. Each wish (a request for
// tasks of one lane) gets its share, the most urgent tasks first, and unused shares go to the
// other wishes.
func (r *Relay) Claim(ctx context.Context, p rows.Purpose, wishes []rows.Wish) ([]*rows.Task, error) {
	list, _, err := r.claim(ctx, p, wishes)
	return list, err
}

func (r *Relay) claim(ctx context.Context, p rows.Purpose, wishes []rows.Wish) (list []*rows.Task, a *admission, err error) {
	err = r.DB.Transact(ctx, func(c rows.Conn) (err error) {
		if err := c.WriteFirst(ctx); err != nil {
			return err
		}
		if a, err = r.admit(ctx, c, wishes); err != nil {
			return err
		}
		picks, err := r.pick(ctx, c, p, a.wishes)
		if err != nil {
			return err
		}
		full := len(picks) == r.Batch
		picks = a.keep(picks)
		if list = nil; len(picks) > 0 {
			if list, err = c.Claim(ctx, fitting(int64(r.BatchBytes), picks), r.Pace.Now().Add(r.Lease).UnixMilli()); err != nil {
				return err
			}
			slices.SortFunc(list, func(a, b *rows.Task) int {
				return cmp.Or(a.DeliverAt.Compare(b.DeliverAt), cmp.Compare(a.ID, b.ID))
			})
		}
		if p == rows.ToSend {
			r.more.Store(full || len(picks) > len(list))
		}
		return a.spend(ctx, c, list)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("claiming tasks: %w", err)
	}
	return list, a, nil
}

// pick chooses rows in two rounds: first every wish gets its share, and then wishes with more
// rows get the shares that the others have not used.
func (r *Relay) pick(ctx context.Context, c rows.Conn, p rows.Purpose, wishes []rows.Wish) (picks []rows.Pick, err error) {
	now := r.Pace.Now().UnixMilli()
	got := make([]int, len(wishes))
	most := make([]int, len(wishes))
	for i, w := range wishes {
		most[i] = w.Most
	}
	for range 2 {
		limits := shares(r.Batch-len(picks), got, most)
		more, err := c.Pick(ctx, p, wishes, got, limits, now)
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			break
		}
		picks = append(picks, more...)
		for _, x := range more {
			got[x.Wish]++
			limits[x.Wish]--
			most[x.Wish]--
		}
		for i, left := range limits {
			if left > 0 {
				most[i] = 0 // the lane has no more rows
			}
		}
	}
	return picks, nil
}

// endLate ends the claimed tasks that have expired, and returns the others.
func (r *Relay) endLate(ctx context.Context, list []*rows.Task) ([]*rows.Task, error) {
	now := r.Pace.Now()
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
