package relay

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

const (
	outgrownEvery = time.Second
	// outgrownPause is the pause after new statistics were collected, or could not be collected because the table was
	// locked.
	outgrownPause = 10 * time.Second
)

// KeepStatistics collects the database's statistics about tables that have grown fast, until ctx ends. Statistics only
// affect the speed, so the relay works without them.
func (r *Relay) KeepStatistics(ctx context.Context) {
	for ctx.Err() == nil {
		pause := outgrownEvery
		err := r.onDatabase(ctx, func(c rows.Conn) error {
			tables, err := c.Outgrown(ctx)
			for _, table := range tables {
				pause = outgrownPause
				if err := c.Analyze(ctx, table); err != nil {
					return err
				}
				r.Log.Debug("schedule: collected statistics about a table that has grown fast", zap.String("table", table))
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			pause = time.Minute
			r.Log.Debug("schedule: could not collect statistics about the tables of tasks", zap.Error(err))
		}
		_ = polling.Sleep(ctx, pause) // an error only means that ctx has ended, which the loop checks itself
	}
}
