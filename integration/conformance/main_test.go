package conformance_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

// make test runs one cell of each queue type.
var tiers = tier.Plan{Test: []string{"TestConformance/" + tier.Newest + "/bucket-clock"}}
