package relay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Look finds the lanes whose first row has an instant up to until, in a bubble all, apart from
// those that are paused.
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

// divide leaves of the lanes those that have something to do by now, and returns the first
// instant of the others, 0 for none.
func divide(lanes []rows.Waiting, now int64) (due []rows.Waiting, next int64) {
	due = slices.DeleteFunc(lanes, func(w rows.Waiting) bool {
		if w.First > now && (next == 0 || w.First < next) {
			next = w.First
		}
		return w.First > now
	})
	return due, next
}

// Take looks for lanes and claims up to a batch of their tasks, unless too many bytes are
// on their way.
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
		next = 0 // what cannot be claimed now is looked for at the usual interval
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

// turns orders lanes so that whoever got the least of the last claim comes first, and of
// those whoever has waited longest.
func turns(list []rows.Waiting, got map[rows.Lane]int) []rows.Waiting {
	return slices.SortedFunc(slices.Values(list), func(a, b rows.Waiting) int {
		return cmp.Or(cmp.Compare(got[a.Lane], got[b.Lane]), cmp.Compare(a.First, b.First),
			cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Exchange, b.Exchange))
	})
}

// Claim takes up to a batch of tasks for the time of the lease, of each wish its share,
// the most urgent first. What one does not use goes to the others.
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

// pick chooses rows: shares for all wishes, and then for those that have more what the
// others left.
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
				most[i] = 0 // it has no more
			}
		}
	}
	return picks, nil
}

// endLate ends the claimed tasks whose time is over, and returns the others.
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

// isLate reports whether a task's time is over. That of one which is due at once counts
// from its creation.
func isLate(t *rows.Task, now time.Time) bool {
	from := t.DeliverAt
	if from.UnixMilli() == 0 {
		from = t.CreatedAt
	}
	return t.ExpiresAfter > 0 && now.Sub(from) >= t.ExpiresAfter
}
