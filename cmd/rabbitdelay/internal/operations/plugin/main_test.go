package plugin_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

var tiers = tier.Plan{}
