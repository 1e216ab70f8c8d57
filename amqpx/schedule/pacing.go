package schedule

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// pacing is how the loops of Run wait. In a testing/synctest bubble no other process can
// write, and looks at short intervals would make a virtual day cost minutes: there each
// waits for the instant at which it has something to do, or until a store of the bubble
// has written.
type pacing struct {
	virtual bool

	mu   sync.Mutex
	rung chan struct{} // closed when something is written
}

// longestPause is the longest pause of a loop in a bubble. After it a task is found that
// was written past all stores.
const longestPause = 10 * time.Minute

// longest is the longest pause of a loop whose interval is given.
func (p *pacing) longest(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, longestPause)
	}
	return interval
}

// rarely is the interval of what nobody waits for.
func (p *pacing) rarely(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, 6*longestPause)
	}
	return interval
}

// workers is how many batches are on their way at once: in a bubble they would only look
// one after the other.
func (p *pacing) workers(n int) int {
	if p.virtual {
		return 1
	}
	return n
}

// horizon is up to which instant a look is to find lanes: where the next one counts, all.
func (p *pacing) horizon(until int64) int64 {
	if p.virtual {
		return math.MaxInt64
	}
	return until
}

// written returns a channel that is closed when something is written in the bubble, and
// nil outside of bubbles.
func (p *pacing) written() <-chan struct{} {
	if !p.virtual {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rung == nil {
		p.rung = make(chan struct{})
	}
	return p.rung
}

// ring ends the pauses of the loops, which go on after their intervals.
func (p *pacing) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rung != nil {
		close(p.rung)
		p.rung = nil
	}
}

// wait pauses, and reports whether ctx goes on. A pause that is longer than the interval
// ends an interval after something was written.
func wait(ctx context.Context, pause, interval time.Duration, written <-chan struct{}) bool {
	after := time.After(pause)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-after:
			return true
		case <-written:
			after, written = time.After(interval), nil
		}
	}
}

// untilSweep is the pause until the next sweep. A lease may end at any time.
func (s *Store) untilSweep(ctx context.Context) time.Duration {
	interval := s.cfg.SweepInterval
	if !s.pace.virtual {
		return interval
	}
	var leased int
	err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'running'").Scan(&leased)
	if err != nil || leased > 0 {
		return interval
	}
	return max(interval, s.overdueAt.until(s.now(), s.pace.longest(interval)))
}

// instant is one at which there is something to do, as far as is known; zero for none.
type instant struct{ ms atomic.Int64 }

func (x *instant) set(ms int64) { x.ms.Store(ms) }

// until is how long it is from now, at most the given time.
func (x *instant) until(now time.Time, most time.Duration) time.Duration {
	ms := x.ms.Load()
	if ms == 0 {
		return most
	}
	return max(0, min(most, time.UnixMilli(ms).Sub(now)))
}

// divide leaves of the lanes those that have something to do by now, and returns the
// first instant of the others, 0 for none.
func divide(lanes []waiting, now int64) (due []waiting, next int64) {
	due = slices.DeleteFunc(lanes, func(w waiting) bool {
		if w.first > now && (next == 0 || w.first < next) {
			next = w.first
		}
		return w.first > now
	})
	return due, next
}

// stores are those that run in this process, by their databases.
var stores = struct {
	sync.Mutex

	running map[sqldb.DB][]*Store
}{running: map[sqldb.DB][]*Store{}}

// begin makes the store one that runs, until end is called.
func (s *Store) begin() (end func()) {
	s.pace.virtual = faketime.Inside()
	stores.Lock()
	defer stores.Unlock()
	stores.running[s.db] = append(stores.running[s.db], s)
	return func() {
		stores.Lock()
		defer stores.Unlock()
		stores.running[s.db] = slices.DeleteFunc(stores.running[s.db], func(x *Store) bool { return x == s })
		if len(stores.running[s.db]) == 0 {
			delete(stores.running, s.db)
		}
	}
}

// running are the stores that run on a database in this process.
func running(db sqldb.DB) []*Store {
	stores.Lock()
	defer stores.Unlock()
	return slices.Clone(stores.running[db])
}

// wrote has the loops of the relays on a database look soon, which they would not in a
// bubble.
func wrote(db sqldb.DB) {
	for _, s := range running(db) {
		s.pace.ring()
	}
}
