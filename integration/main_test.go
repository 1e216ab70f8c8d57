package integration_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// TestMain ends what the tests share: brokers and database servers.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing brokers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
