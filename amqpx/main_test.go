package amqpx_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// broker of the examples; see brokerURL.
var exampleBroker = &exampleT{}

// TestMain leaves the examples out where integration tests are skipped, and
// finds goroutines that were left behind.
func TestMain(m *testing.M) {
	flag.Parse()
	run := flag.Lookup("test.run")
	if os.Getenv(broker.EnvSkip) == "1" && run.Value.String() == "" {
		fmt.Printf("examples skipped: %s is 1\n", broker.EnvSkip)
		_ = run.Value.Set("^(Test|Fuzz)")
	}
	code := m.Run()
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the broker:", err)
		code = max(code, 1)
	}
	if code == 0 && !exampleBroker.used { // a container's client keeps goroutines
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// brokerURL is AMQP_URL in an application.
func brokerURL() string {
	exampleBroker.used = true
	return broker.Shared(exampleBroker, broker.Options{}).URL()
}

// exampleT stands for the *testing.T that an example has not got.
type exampleT struct{ used bool }

func (*exampleT) Helper()                           {}
func (*exampleT) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (*exampleT) Skipf(format string, args ...any)  { panic(fmt.Sprintf(format, args...)) }
func (*exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
