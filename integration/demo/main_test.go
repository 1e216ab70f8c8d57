package demo

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The settings of the machine that runs the tests must not affect the demo.
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "AMQP_URL" || strings.HasPrefix(name, "RABBITDELAY_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}
