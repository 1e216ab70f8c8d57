package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// gateAhead is how long before it may go a task is claimed whose lane has a ceiling. The
// broker holds it until then. It is long enough for a claim and its publishing on a slow
// database, and short, because what is written meanwhile comes behind it.
const gateAhead = time.Second

// gates are those of the last look, by lane.
type gates map[rows.Lane]*rows.Gate

// limited reports whether a lane's tasks are spaced.
func (g gates) limited(l rows.Lane, now time.Time) bool {
	x := g[l]
	return x != nil && (x.PerSecond > 0 || x.Spreads(now))
}

// readGates reads what holds lanes back.
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

// known are the gates of the last look.
func (r *Relay) known() gates {
	if g := r.gates.Load(); g != nil {
		return *g
	}
	return nil
}

// gated leaves of lanes those that something may be claimed of, and returns when the first
// of the others is to be looked at again, 0 for never.
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

// earlier is the earlier of two instants, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// admissible is what may be claimed of a lane as far as troubles and gates are known. What came
// due in a pause is a wish of its own while it is sent over a time.
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

// valve is the gate of a lane in one claim.
type valve struct {
	*rows.Gate

	ceiling, spread *bucket // nil: none
	room            int     // tasks that the ceiling allows; -1: any number
	picked          int
	shut            bool // for a wish at least
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

// most is how many rows of a wish may be claimed.
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

// spreads reports whether what is due at an instant is sent over a time.
func (v *valve) spreads(due int64) bool { return v.spread != nil && due <= v.SpreadDue.UnixMilli() }

// slot sets when a task may go.
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

// lookAt is when the lane is to be looked at again. Behind what is sent over a time nobody
// sees when the next task is due.
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

// admission is what the gates let through in one claim.
type admission struct {
	now    time.Time
	valves map[rows.Lane]*valve // nil: another relay is claiming there
	wishes []rows.Wish
}

// admit locks the gates of the wishes until the transaction ends, and lowers the wishes to
// what they allow. It reads them anew: a claim may have waited long since the look.
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

// keep leaves of picks what the gates of their lanes have room for.
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

// spend assigns the claimed tasks their instants, those first that are due first, and writes
// what they use of the gates. One whose time is over uses nothing.
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

// again is when the first of the gates is to be looked at again that may keep something back,
// 0 for never.
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

// recallAhead is how long before their messages come the tasks of a paused lane are taken
// back.
const recallAhead = time.Minute

// Recall takes back the tasks of paused lanes whose messages are with the broker and may
// come within minutes, and returns the pause until the next look. Others stay there: the
// pause may end before.
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
		// A first message is to be sent again a grace after it comes, a third four times that.
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
