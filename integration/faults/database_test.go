package faults_test

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Each effect is committed once on MariaDB and SQLite too.
func TestOtherDatabases(t *testing.T) {
	skipIfAsked(t)
	for _, kind := range tier.Sample(t.Name(), []database.Kind{database.MariaDB, faults.SQLite}) {
		t.Run(string(kind), func(t *testing.T) {
			cfg := faults.Config{
				Name: string(kind), Brokers: shared(t),
				Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
				Database: kind, Seed: *seed, Duration: brief(), Rate: min(*rate, 50),
				Kinds: faults.Kinds("consumer", "database"),
			}
			if kind == faults.SQLite {
				cfg.Kinds = append(faults.Kinds("consumer"), faults.LockTable, faults.Conflict)
			}
			promised(t, run(t, cfg))
		})
	}
}
