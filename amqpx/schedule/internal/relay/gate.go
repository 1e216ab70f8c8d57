package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// gateAhead is how long before its delivery a task of a lane with a rate limit is claimed. The broker delays the
// message for that time. The time is long enough for claiming and publishing on a slow database. A longer time would be
// unfair: a task that is written later but due earlier comes after the tasks that have already been claimed.
const gateAhead = time.Second

// gates maps each lane that is paused or limited to its gate, which is the row with the pause and the rate limit.
type gates map[rows.Lane]*rows.Gate

// limited reports whether the rate of a lane's tasks is limited.
func (g gates) limited(l rows.Lane, now time.Time) bool {
	x := g[l]
	return x != nil && (x.PerSecond > 0 || x.Spreads(now))
}

// readGates reads all gates, and stores them for the method known.
func (r *Relay) readGates(ctx context.Context, c rows.Conn) (gates, error) {
	list, err := c.Gates(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading pauses and rate limits: %w", err)
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

// gated returns the lanes whose first task may be claimed now. again is the time at which the first task of the other
// lanes may be claimed, or 0 if there are no other lanes.
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

// admissible returns the claim requests for a lane that the back-off of its targets and the last known gates allow.
// Tasks that are spread over time after a pause are requested separately, because the rate of the spread applies only
// to them.
func (r *Relay) admissible(l rows.Lane, g gates, until int64, now time.Time) []rows.ClaimRequest {
	if !g.limited(l, now) {
		return r.backoffs.requests(l, until, now)
	}
	list := r.backoffs.requests(l, min(until, now.Add(gateAhead).UnixMilli()), now)
	if !g[l].Spreads(now) {
		return list
	}
	both := make([]rows.ClaimRequest, 0, 2*len(list))
	for _, w := range list {
		old, young := w, w
		old.Until, young.After = g[l].SpreadDue.UnixMilli(), g[l].SpreadDue.UnixMilli()
		both = append(both, old, young)
	}
	return both
}

// limiter applies the pause and the rate limits of a lane during one claim.
type limiter struct {
	*rows.Gate

	rateLimit, spread *bucket // nil if there is no limit
	allowed           int     // number of tasks that the rate limit allows, or -1 for any number
	chosen            int
	shut              bool // whether at least one request was reduced to no tasks
}

func newLimiter(g *rows.Gate, now time.Time) *limiter {
	v := &limiter{Gate: g, allowed: -1}
	until := now.Add(gateAhead).UnixNano()
	if g.PerSecond > 0 {
		v.rateLimit = newBucket(g.PerSecond, g.Burst, g.Free)
		v.allowed = v.rateLimit.fits(now.UnixNano(), until)
	}
	if g.Spreads(now) {
		v.spread = newBucket(g.SpreadRate, 1, g.SpreadFree)
	}
	if g.Paused() {
		v.allowed = 0
	}
	return v
}

// most returns how many rows may be claimed for a request.
func (v *limiter) most(w rows.ClaimRequest, now time.Time) int {
	n := w.Most
	if v.spreads(w.Until) {
		n = min(n, v.spread.fits(now.UnixNano(), now.Add(gateAhead).UnixNano()))
	}
	if v.allowed >= 0 {
		n = min(n, v.allowed)
	}
	return n
}

// spreads reports whether a task with the given due time is one of the tasks that are spread over time after a pause.
func (v *limiter) spreads(due int64) bool { return v.spread != nil && due <= v.SpreadDue.UnixMilli() }

// slot sets a task's NotBefore to the earliest time that the limits allow, and reserves that time.
func (v *limiter) slot(t *rows.Task, now time.Time) {
	at := max(t.DeliverAt.UnixNano(), now.UnixNano())
	if v.spreads(t.DeliverAt.UnixMilli()) {
		at = max(at, v.spread.take(now.UnixNano()))
		v.SpreadFree = v.spread.free
	}
	if v.rateLimit != nil {
		at = v.rateLimit.take(at)
		v.Free = v.rateLimit.free
	}
	t.NotBefore = time.Unix(0, at)
}

// lookAt returns the time at which to poll the lane again. While tasks are spread over time, the lane is polled at a
// fixed interval, because the due time of the lane's first task that is not spread is unknown: the spread tasks come
// before that task in the index.
func (v *limiter) lookAt(now time.Time) time.Time {
	if v.spread != nil {
		return now.Add(gateAhead / 2)
	}
	at := now.Add(gateAhead / 4)
	if v.rateLimit != nil {
		if open := time.Unix(0, v.rateLimit.opens()).Add(-gateAhead / 2); open.After(at) {
			at = open
		}
	}
	return at
}

// admission is the state of the gates during one claim, and the requests that they allow.
type admission struct {
	now      time.Time
	limiters map[rows.Lane]*limiter // nil for a lane whose gate another session has locked
	requests []rows.ClaimRequest
	bounded  bool // whether the claim's session has a limit that release must remove
}

func newAdmission(now time.Time, requests []rows.ClaimRequest) *admission {
	return &admission{now: now, limiters: map[rows.Lane]*limiter{}, requests: slices.Clone(requests)}
}

// admit locks the gates of the admission's requests until the transaction ends, and reduces each request to the number
// of tasks that its gate allows. It reads the gates again, because the claim may have waited for a long time since they
// were last read.
func (r *Relay) admit(ctx context.Context, c rows.Conn, a *admission) error {
	known, err := r.readGates(ctx, c)
	if err != nil {
		return err
	}
	var lanes []rows.Lane
	for _, w := range a.requests {
		_, listed := a.limiters[w.Lane]
		switch g := known[w.Lane]; {
		case listed || g == nil:
		case g.Paused():
			a.limiters[w.Lane] = newLimiter(g, a.now)
		case known.limited(w.Lane, a.now):
			a.limiters[w.Lane] = nil
			lanes = append(lanes, w.Lane)
		}
	}
	if len(lanes) > 0 {
		if err := c.BoundClaim(ctx); err != nil {
			return fmt.Errorf("limiting the claim: %w", err)
		}
		a.bounded = true
		locked, err := c.LockGates(ctx, lanes)
		if err != nil {
			return fmt.Errorf("reading rate limits: %w", err)
		}
		for l, g := range locked {
			a.limiters[l] = newLimiter(g, a.now)
		}
		for _, l := range lanes {
			r.stuck.note(known[l], locked[l] == nil, a.now)
		}
	}
	for i, w := range a.requests {
		if v, limited := a.limiters[w.Lane]; limited {
			a.requests[i].Most = 0
			if v != nil {
				a.requests[i].Most = v.most(w, a.now)
				v.shut = v.shut || a.requests[i].Most == 0
			}
		}
	}
	return nil
}

// keep returns the candidates that the gates of their lanes allow.
func (a *admission) keep(candidates []rows.Candidate) []rows.Candidate {
	kept := candidates[:0]
	for _, p := range candidates {
		if v := a.limiters[a.requests[p.Request].Lane]; v != nil {
			if v.allowed >= 0 && v.chosen >= v.allowed {
				continue
			}
			v.chosen++
		}
		kept = append(kept, p)
	}
	return kept
}

// spend sets the time from which each claimed task may be delivered, and updates the rate limits in the database
// accordingly. It processes the list in order of due time. Tasks that have expired do not count against the rate
// limits.
func (a *admission) spend(ctx context.Context, c rows.Conn, list []*rows.Task) error {
	spent := map[*limiter]bool{}
	for _, t := range list {
		if v := a.limiters[t.Lane()]; v != nil && !isLate(t, a.now) {
			v.slot(t, a.now)
			spent[v] = true
		}
	}
	for v := range spent {
		if err := c.SpendGate(ctx, v.Gate); err != nil {
			return fmt.Errorf("writing a rate limit: %w", err)
		}
	}
	return nil
}

// releaseTimeout is how long a claim may continue after its context has ended, to restore the limit of its session.
const releaseTimeout = time.Second

// lingering returns a context that ends releaseTimeout after ctx. The function cancel must be called.
func lingering(ctx context.Context) (after context.Context, cancel func()) {
	after, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(releaseTimeout, end) })
	return after, func() {
		stop()
		end()
	}
}

// release removes the limit that BoundClaim has set. It must be called before the transaction ends.
func (a *admission) release(ctx context.Context, c rows.Conn) error {
	if !a.bounded {
		return nil
	}
	if err := c.UnboundClaim(ctx); err != nil {
		return fmt.Errorf("ending the limit of the claim: %w", err)
	}
	return nil
}

// nextPoll returns the time at which to poll the lanes whose gates may still hold back tasks, or 0 if there are none.
func (a *admission) nextPoll() (next int64) {
	for _, v := range a.limiters {
		switch {
		case v == nil:
			next = earlier(next, a.now.Add(gateAhead/4).UnixMilli())
		case v.shut || v.chosen > 0:
			next = earlier(next, v.lookAt(a.now).UnixMilli())
		}
	}
	return next
}

// recallAhead is how long before the delivery of its message a task of a paused lane is recalled.
const recallAhead = time.Minute

// Recall marks tasks of paused lanes as unsent again if their messages are on the broker and may be delivered within
// minutes. Their messages then have no effect. Messages that will be delivered later are not recalled, because the lane
// may be resumed before then. Recall returns how long to wait before the next call.
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
				return 0, fmt.Errorf("recalling tasks of a paused destination: %w", err)
			}
		}
	}
	return r.Poller.Longest(r.PollInterval), nil
}

func (r *Relay) recall(ctx context.Context, l rows.Lane) error {
	var total int64
	for {
		now := r.Poller.Now()
		// The query can only compare resend_at, which is one Grace after the delivery of a task's first message, and
		// four times Grace after the delivery of its third. A task that was sent more often may therefore not be
		// recalled.
		until := now.Add(recallAhead + 4*r.Grace).UnixMilli()
		if r.Poller.Virtual() {
			until = rows.MaxDue
		}
		var n int64
		err := r.DB.TransactRecall(ctx, func(c rows.Conn) (err error) {
			n, err = c.Recall(ctx, l, until, r.Batch, now.UnixMilli())
			return err
		})
		if total += n; err != nil || n < int64(r.Batch) {
			if total > 0 {
				r.Log.Info("recalled tasks of a paused destination from the broker", zap.Int64("tasks", total), zap.String("queue", l.Queue), zap.String("exchange", l.Exchange))
			}
			return err
		}
	}
}
