package config

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/rabbitdelay/rabbitdelay/config/mysql"
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres"
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"
)

func TestMain(m *testing.M) {
	// Remove the settings of the machine that runs the tests.
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "AMQP_URL" || strings.HasPrefix(name, envPrefix+"_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}
