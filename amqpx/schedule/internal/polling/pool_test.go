package polling_test

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

func TestPoolWatch(t *testing.T) {
	var w polling.PoolWatch
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	waited := time.Duration(0)
	for _, c := range []struct {
		what    string
		pause   time.Duration
		waiting float64 // average number of waiting callers
		full    bool
		warn    bool
	}{
		{"first call", 0, 0, true, false},
		{"few waiting callers", polling.PoolInterval, 0.5, true, false},
		{"callers wait, but the pool is not full", polling.PoolInterval, 3, false, false},
		{"pool is too small", polling.PoolInterval, 3, true, true},
		{"still too small", polling.PoolInterval, 3, true, false},
		{"still too small after ten minutes", 10 * time.Minute, 3, true, true},
		{"no waiting callers", polling.PoolInterval, 0, true, false},
	} {
		now = now.Add(c.pause)
		waited += time.Duration(c.waiting * float64(c.pause))
		waiting, warn := w.Look(sqldb.PoolUse{Waited: waited, Max: 4, Full: c.full}, now)
		if warn != c.warn {
			t.Errorf("%s: warning: got %t, want %t", c.what, warn, c.warn)
		}
		if c.full && waiting != c.waiting {
			t.Errorf("%s: got an average of %v waiting callers, want %v", c.what, waiting, c.waiting)
		}
	}
}
