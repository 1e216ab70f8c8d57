package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// stuckAfter is how long a rate limit may be locked without being used before Health reports it. A claim locks it for
// milliseconds.
const stuckAfter = 10 * time.Second

// stuck tracks rate limits that a session has locked without using them, because a relay or another client hangs in a
// transaction.
type stuck struct {
	mu    sync.Mutex
	lanes map[rows.Lane]lockedGate
}

// lockedGate is the state of a rate limit when it was first found locked.
type lockedGate struct {
	since            time.Time
	free, spreadFree int64 // the gate's values at that time; if a relay holds the lock and works, it changes them
}

// note records whether a rate limit was found locked.
func (s *stuck) note(g *rows.Gate, locked bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, noted := s.lanes[g.Lane]
	switch {
	case !locked:
		delete(s.lanes, g.Lane)
	case !noted || before.free != g.Free || before.spreadFree != g.SpreadFree:
		if s.lanes == nil {
			s.lanes = map[rows.Lane]lockedGate{}
		}
		s.lanes[g.Lane] = lockedGate{now, g.Free, g.SpreadFree}
	}
}

// list returns the lanes whose rate limits have been locked without use for stuckAfter, and since when they have been.
func (s *stuck) list(now time.Time) map[rows.Lane]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[rows.Lane]time.Time{}
	for l, g := range s.lanes {
		if now.Sub(g.since) >= stuckAfter {
			list[l] = g.since
		}
	}
	return list
}

// reportStuck reports the rate limits that another session keeps locked, and which session that is.
func (r *Relay) reportStuck(ctx context.Context) {
	if r.ReportRateLimit == nil {
		return
	}
	var errs []error
	for l, since := range r.stuck.list(r.Poller.Now()) {
		who := "the database does not show which session"
		if c, err := r.DB.Conn(ctx); err == nil {
			if holder, err := c.GateHolder(ctx, l); err == nil {
				who = cmp.Or(holder, who)
			}
		}
		errs = append(errs, fmt.Errorf("another session has held the lock on the rate limit of %s since %s, so no tasks for this destination are sent: %s",
			cmp.Or(l.Queue, l.Exchange), since.UTC().Format(time.RFC3339), who))
	}
	r.ReportRateLimit(errors.Join(errs...))
}
