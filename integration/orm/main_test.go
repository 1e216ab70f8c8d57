package orm

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	code := tier.Run(m, tier.Plan{}, nil)
	if err := database.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
