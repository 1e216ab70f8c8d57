package polling

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

const (
	// PoolInterval is the time between two calls to PoolWatch.Look.
	PoolInterval = 30 * time.Second
	// poolQuiet is the shortest time between two warnings.
	poolQuiet = 10 * time.Minute
)

// PoolWatch detects that a database's pool has fewer connections than its users need.
type PoolWatch struct {
	last   sqldb.PoolUse
	at     time.Time // when last was read
	warned time.Time
}

// Look returns how many callers have waited for a connection on average since the previous call, and whether to log a
// warning. warn is true if the pool is full, at least one caller was waiting on average, and the last warning was at
// least poolQuiet ago.
func (w *PoolWatch) Look(use sqldb.PoolUse, now time.Time) (waiting float64, warn bool) {
	last, at := w.last, w.at
	w.last, w.at = use, now
	if at.IsZero() || !use.Full {
		return 0, false
	}
	waiting = float64(use.Waited-last.Waited) / float64(now.Sub(at))
	if waiting < 1 || !w.warned.IsZero() && now.Sub(w.warned) < poolQuiet {
		return waiting, false
	}
	w.warned = now
	return waiting, true
}
