package main

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// instant measures how long it takes to handle tasks that are all due at the same time.
func instant(ctx context.Context, r *run, c contender, row *bench.Case) error {
	return r.with(ctx, c, func(s system) error {
		l := newLedger()
		return working(ctx, s, l, func() error {
			due := time.Now().Add(r.sizes.ahead).Truncate(time.Millisecond)
			list := make([]task, r.sizes.Instant)
			for i := range list {
				list[i] = task{int64(i), due}
			}
			if err := store(ctx, s, l, list); err != nil {
				return err
			}
			if !time.Now().Before(due) {
				r.result.Scenario.Notef("%s: the tasks were due before all of them were scheduled", c.name)
			}
			missing, err := l.wait(ctx, r.sizes.ahead+r.sizes.patience)
			if err != nil {
				return err
			}
			r.once(c, l, missing)
			late := l.lateness()
			if len(late) == 0 {
				return nil
			}
			row.Add(metricFirst, "ms late", late[0])
			row.AddPercentiles("ms late", late, 0.5)
			row.Add(metricLast, "ms late", late[len(late)-1])
			if late[len(late)-1] > late[0] {
				row.Add(metricRate, "tasks/s", float64(len(late))/(late[len(late)-1]-late[0])*1000)
			}
			return nil
		})
	})
}
