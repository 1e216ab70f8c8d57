package pace_test

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

func TestPoolWatch(t *testing.T) {
	var w pace.PoolWatch
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	waited := time.Duration(0)
	for _, c := range []struct {
		what    string
		pause   time.Duration
		waiting float64 // average number of waiting callers
		full    bool
		warn    bool
	}{
		{"the first look", 0, 0, true, false},
		{"some waiting", pace.PoolInterval, 0.5, true, false},
		{"waiting for connections that are being opened", pace.PoolInterval, 3, false, false},
		{"a pool that is too small", pace.PoolInterval, 3, true, true},
		{"the same again", pace.PoolInterval, 3, true, false},
		{"the same later", 10 * time.Minute, 3, true, true},
		{"no waiting", pace.PoolInterval, 0, true, false},
	} {
		now = now.Add(c.pause)
		waited += time.Duration(c.waiting * float64(c.pause))
		waiting, warn := w.Look(sqldb.PoolUse{Waited: waited, Max: 4, Full: c.full}, now)
		if warn != c.warn {
			t.Errorf("%s: warn = %v, want %v", c.what, warn, c.warn)
		}
		if c.full && waiting != c.waiting {
			t.Errorf("%s: %v callers wait, want %v", c.what, waiting, c.waiting)
		}
	}
}
