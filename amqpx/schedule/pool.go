package schedule

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// watchPool warns while the database's pool has fewer connections than its users need: the relay, the handlers and the
// rest of the program. In that case tasks are late, and nothing else shows the cause.
func (s *Store) watchPool(ctx context.Context) {
	pool, ok := s.db.DB.(sqldb.Pool)
	if !ok {
		return
	}
	if d, _ := s.db.Dialect(); d == sqldb.SQLite { // more connections would not help, because SQLite has only one writer
		return
	}
	var w polling.PoolWatch
	for {
		if use, limited := pool.PoolUse(); limited {
			if waiting, warn := w.Look(use, time.Now()); warn {
				s.log.Warn("the database's pool has too few connections, which delays tasks; allow more connections (see docs/databases.md)",
					zap.Int("connections", use.Max), zap.Float64("waiting_on_average", waiting), zap.Duration("over", polling.PoolInterval))
			}
		}
		if polling.Sleep(ctx, polling.PoolInterval) != nil {
			return
		}
	}
}
