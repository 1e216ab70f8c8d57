package conformance_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

// One cell of each queue type runs before a push.
var tiers = tier.Plan{Test: []string{"TestConformance/" + tier.Newest + "/bucket-clock"}}
