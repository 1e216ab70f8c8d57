package operations_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

// make test runs the main case of each command.
var tiers = tier.Plan{Test: []string{
	"TestCLISendAndConsume",
	"TestCLIPlanApplyDestroy",
	"TestCLIStatus",
	"TestCLIRetire",
	"TestTopologyPlanApplyPlan/" + tier.Newest,
	"TestDoctorCommand",
	"TestDoctorOverAMQP/" + tier.Newest,
	"TestReadmeProgram",
}, Nightly: []string{ // clusters of three, and the binaries of every platform
	"TestManagementOfAnotherBroker",
	"TestNightWithoutAMajority",
	"TestRelease",
}}
