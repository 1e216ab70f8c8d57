package proxy

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(tier.Run(m, tier.Everything, nil)) }
