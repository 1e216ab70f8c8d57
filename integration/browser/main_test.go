package browser

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	code := tier.Run(m, tier.Plan{}, nil)
	for _, end := range []func() error{closeBrowser, broker.CloseShared, database.CloseShared} {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, "closing:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
