package tasks_test

import (
	"fmt"
	"os"
	"testing"

	_ "github.com/rabbitdelay/rabbitdelay/config/mysql" // the databases of config.OpenDB
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres"
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// TestMain is also the main function of the child process that a test kills.
func TestMain(m *testing.M) {
	if given := os.Getenv(leaseEnv); given != "" {
		fmt.Fprintln(os.Stderr, workUntilKilled(given)) // returns only on an error
		os.Exit(1)
	}
	os.Exit(suite.Main(m, tiers))
}

// make test tests the guarantees of tasks and of idempotency on PostgreSQL and SQLite.
var tiers = tier.Plan{Test: []string{
	"TestIdempotencyEffectOnce/" + ordinary,
	"TestIdempotencyConcurrentDuplicates/" + ordinary,
	"TestScheduleInTransaction/" + ordinary,
	"TestScheduleTwiceAndReplace/" + ordinary,
	"TestScheduleChanges/" + ordinary,
	"TestScheduleHandlerFence/" + ordinary,
	"TestScheduleConcurrentFence/" + ordinary,
	"TestScheduleRelaysShare/" + ordinary,
	"TestScheduleUnique/" + ordinary,
	"TestScheduleMigrate/" + ordinary,
	"TestDocumentedTaskStatements/" + ordinary,
	"TestRecurringChanges/" + ordinary,
	"TestPgxExecutors",
	"TestCLITasks/" + ordinary,
}}

// ordinary lists the databases of make test.
const ordinary = "sqlite|postgres|pgx"
