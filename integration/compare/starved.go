package main

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// shares are the numbers of processors on which the workload starved runs.
var shares = []float64{1, 0.5, 0.25}

// starvable lists the contenders of the workload starved, once for each number of processors.
func starvable() []contender {
	var all []contender
	for _, share := range shares {
		for _, c := range contenders() {
			switch c.name {
			case byMessages, byExact, byPgx, byRiver, byAsynq, byTable:
				c.name, c.processors = fmt.Sprintf("%g: %s", share, c.name), share
				all = append(all, c)
			}
		}
	}
	return all
}

// starved is the same as steady at a lower rate, while a contender and its servers share a limited number of
// processors.
func starved(ctx context.Context, r *run, c contender, row *bench.Case) error {
	if r.without[limits] != "" {
		return nil
	}
	if r.limit == nil {
		l, err := r.limited(ctx)
		if err != nil {
			r.without[limits] = err.Error()
			r.result.Scenario.Notef("left out: %v", err)
			return nil
		}
		r.limit = l
	}
	r.sizes.Rate = r.sizes.Starved
	return r.limit.within(c.processors, func() error { return steady(ctx, r, c, row) })
}
