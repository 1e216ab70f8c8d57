package main

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// poolSizes are the numbers of connections with which the workload pools runs.
var poolSizes = []int{2, 4, 24}

// pooled lists the contenders of the workload pools, once for each number of connections.
func pooled() []contender {
	var all []contender
	for _, n := range poolSizes {
		for _, c := range contenders() {
			switch c.name {
			case bySQL, byPgx, byRiver, byTable:
				c.name, c.connections = fmt.Sprintf("%d: %s", n, c.name), n
				all = append(all, c)
			}
		}
	}
	return all
}

// pools is the same as steady, while everything that a contender does shares a limited number of connections.
func pools(ctx context.Context, r *run, c contender, row *bench.Case) error {
	r.connections = c.connections
	defer func() { r.connections = writers }()
	return steady(ctx, r, c, row)
}
