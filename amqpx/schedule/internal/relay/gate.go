package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// gateAhead is how long before its release a task of a lane with a ceiling is claimed. The broker
// delays the message until then. It is long enough for a claim and its publishing on a slow
// database. It is not longer, because tasks that are written in the meantime come after it.
const gateAhead = time.Second

// gates maps lanes to their gates (pause and ceiling).
type gates map[rows.Lane]*rows.Gate

// limited reports whether the rate of a lane's tasks is limited.
func (g gates) limited(l rows.Lane, now time.Time) bool {
	x := g[l]
	return x != nil && (x.PerSecond > 0 || x.Spreads(now))
}

// readGates reads all gates and stores them for known.
func (r *Relay) readGates(ctx context.Context, c rows.Conn) (gates, error) {
	list, err := c.Gates(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking what is paused: %w", err)
	}
	g := make(gates, len(list))
	for _, x := range list {
		g[x.Lane] = x
	}
	r.gates.Store(&g)
	return g, nil
}

// known returns the gates that were read last.
func (r *Relay) known() gates {
	if g := r.gates.Load(); g != nil {
		return *g
	}
	return nil
}

// gated returns the lanes from which tasks may be claimed, and the time at which the first of the
// other lanes has to be looked at again, 0 for never.
func (g gates) gated(lanes []rows.Waiting, now time.Time) (open []rows.Waiting, again int64) {
	for _, w := range lanes {
		from := w.First - gateAhead.Milliseconds()
		if g.limited(w.Lane, now) && from > now.UnixMilli() {
			again = earlier(again, from)
			continue
		}
		open = append(open, w)
	}
	return open, again
}

// earlier returns the earlier of two times, where 0 means no time.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// admissible returns the wishes for a lane that its targets' back-off and the known gates allow.
// While a backlog that came due during a pause is spread over time, it gets a separate wish.
func (r *Relay) admissible(l rows.Lane, g gates, until int64, now time.Time) []rows.Wish {
	if !g.limited(l, now) {
		return r.troubles.wishes(l, until, now)
	}
	list := r.troubles.wishes(l, min(until, now.Add(gateAhead).UnixMilli()), now)
	if !g[l].Spreads(now) {
		return list
	}
	both := make([]rows.Wish, 0, 2*len(list))
	for _, w := range list {
		old, young := w, w
		old.Until, young.After = g[l].SpreadDue.UnixMilli(), g[l].SpreadDue.UnixMilli()
		both = append(both, old, young)
	}
	return both
}

// valve applies the gate of a lane during one claim.
type valve struct {
	*rows.Gate

	ceiling, spread *bucket // nil: no limit
	room            int     // number of tasks that the ceiling allows; -1: any number
	picked          int
	shut            bool // whether at least one wish got nothing
}

func openValve(g *rows.Gate, now time.Time) *valve {
	v := &valve{Gate: g, room: -1}
	until := now.Add(gateAhead).UnixNano()
	if g.PerSecond > 0 {
		v.ceiling = newBucket(g.PerSecond, g.Burst, g.Free)
		v.room = v.ceiling.fits(now.UnixNano(), until)
	}
	if g.Spreads(now) {
		v.spread = newBucket(g.SpreadRate, 1, g.SpreadFree)
	}
	if g.Paused() {
		v.room = 0
	}
	return v
}

// most returns how many rows of a wish may be claimed.
func (v *valve) most(w rows.Wish, now time.Time) int {
	n := w.Most
	if v.spreads(w.Until) {
		n = min(n, v.spread.fits(now.UnixNano(), now.Add(gateAhead).UnixNano()))
	}
	if v.room >= 0 {
		n = min(n, v.room)
	}
	return n
}

// spreads reports whether a task with the given due time belongs to a backlog that is spread over time.
func (v *valve) spreads(due int64) bool { return v.spread != nil && due <= v.SpreadDue.UnixMilli() }

// slot sets a task's NotBefore to the next time that the limits allow.
func (v *valve) slot(t *rows.Task, now time.Time) {
	at := max(t.DeliverAt.UnixNano(), now.UnixNano())
	if v.spreads(t.DeliverAt.UnixMilli()) {
		at = max(at, v.spread.take(now.UnixNano()))
		v.SpreadFree = v.spread.free
	}
	if v.ceiling != nil {
		at = v.ceiling.take(at)
		v.Free = v.ceiling.free
	}
	t.NotBefore = time.Unix(0, at)
}

// lookAt returns when to look at the lane again. While a backlog is spread over time, that is a
// fixed interval, because the backlog hides when the next task is due.
func (v *valve) lookAt(now time.Time) time.Time {
	if v.spread != nil {
		return now.Add(gateAhead / 2)
	}
	at := now.Add(gateAhead / 4)
	if v.ceiling != nil {
		if open := time.Unix(0, v.ceiling.opens()).Add(-gateAhead / 2); open.After(at) {
			at = open
		}
	}
	return at
}

// admission is the set of wishes that the gates allow in one claim.
type admission struct {
	now    time.Time
	valves map[rows.Lane]*valve // a nil value: another session has locked the gate
	wishes []rows.Wish
}

// admit locks the gates of the wishes until the transaction ends, and reduces the wishes to the
// number of tasks that the gates allow. It reads the gates again, because the claim may have waited
// for a long time since the last look.
func (r *Relay) admit(ctx context.Context, c rows.Conn, wishes []rows.Wish) (*admission, error) {
	a := &admission{now: r.Pace.Now(), valves: map[rows.Lane]*valve{}, wishes: append([]rows.Wish(nil), wishes...)}
	known, err := r.readGates(ctx, c)
	if err != nil {
		return nil, err
	}
	var lanes []rows.Lane
	for _, w := range wishes {
		_, listed := a.valves[w.Lane]
		switch g := known[w.Lane]; {
		case listed || g == nil:
		case g.Paused():
			a.valves[w.Lane] = openValve(g, a.now)
		case known.limited(w.Lane, a.now):
			a.valves[w.Lane] = nil
			lanes = append(lanes, w.Lane)
		}
	}
	if len(lanes) > 0 {
		if err := c.BoundClaim(ctx); err != nil {
			return nil, fmt.Errorf("bounding the claim: %w", err)
		}
		locked, err := c.LockGates(ctx, lanes)
		if err != nil {
			return nil, fmt.Errorf("reading ceilings: %w", err)
		}
		for l, g := range locked {
			a.valves[l] = openValve(g, a.now)
		}
		for _, l := range lanes {
			r.stuck.note(known[l], locked[l] == nil, a.now)
		}
	}
	for i, w := range a.wishes {
		if v, limited := a.valves[w.Lane]; limited {
			a.wishes[i].Most = 0
			if v != nil {
				a.wishes[i].Most = v.most(w, a.now)
				v.shut = v.shut || a.wishes[i].Most == 0
			}
		}
	}
	return a, nil
}

// keep returns the picks that the gates of their lanes allow.
func (a *admission) keep(picks []rows.Pick) []rows.Pick {
	kept := picks[:0]
	for _, p := range picks {
		if v := a.valves[a.wishes[p.Wish].Lane]; v != nil {
			if v.room >= 0 && v.picked >= v.room {
				continue
			}
			v.picked++
		}
		kept = append(kept, p)
	}
	return kept
}

// spend sets when the claimed tasks may be delivered, in the order of list, which is sorted by due
// time, and writes what they use of the gates. An expired task uses nothing.
func (a *admission) spend(ctx context.Context, c rows.Conn, list []*rows.Task) error {
	spent := map[*valve]bool{}
	for _, t := range list {
		if v := a.valves[t.Lane()]; v != nil && !isLate(t, a.now) {
			v.slot(t, a.now)
			spent[v] = true
		}
	}
	for v := range spent {
		if err := c.SpendGate(ctx, v.Gate); err != nil {
			return fmt.Errorf("writing a ceiling: %w", err)
		}
	}
	return nil
}

// again returns when to look again at the first of the lanes whose gates may still hold back
// tasks, 0 for never.
func (a *admission) again() (next int64) {
	for _, v := range a.valves {
		switch {
		case v == nil:
			next = earlier(next, a.now.Add(gateAhead/4).UnixMilli())
		case v.shut || v.picked > 0:
			next = earlier(next, v.lookAt(a.now).UnixMilli())
		}
	}
	return next
}

// recallAhead is how long before the delivery of its message a task of a paused lane is recalled.
const recallAhead = time.Minute

// Recall recalls the tasks of paused lanes whose messages are with the broker and may be delivered
// within minutes, and returns how long to wait before the next look. Messages that are delivered
// later stay with the broker, because the lane may be resumed before.
func (r *Relay) Recall(ctx context.Context) (time.Duration, error) {
	c, err := r.DB.Conn(ctx)
	if err != nil {
		return 0, err
	}
	g, err := r.readGates(ctx, c)
	if err != nil {
		return 0, err
	}
	for l, x := range g {
		if x.Paused() {
			if err := r.recall(ctx, l); err != nil {
				return 0, fmt.Errorf("taking back tasks of a paused destination: %w", err)
			}
		}
	}
	return r.Pace.Longest(r.PollInterval), nil
}

func (r *Relay) recall(ctx context.Context, l rows.Lane) error {
	var total int64
	for {
		now := r.Pace.Now()
		// resend_at is one Grace after the delivery of a task's first message, and four times
		// Grace after the delivery of its third.
		until := now.Add(recallAhead + 4*r.Grace).UnixMilli()
		if r.Pace.Virtual() {
			until = rows.MaxDue
		}
		var n int64
		err := r.DB.Transact(ctx, func(c rows.Conn) (err error) {
			n, err = c.Recall(ctx, l, until, r.Batch, now.UnixMilli())
			return err
		})
		if total += n; err != nil || n < int64(r.Batch) {
			if total > 0 {
				r.Log.Info("tasks of a paused destination taken back from the broker", zap.Int64("tasks", total), zap.String("queue", l.Queue), zap.String("exchange", l.Exchange))
			}
			return err
		}
	}
}
