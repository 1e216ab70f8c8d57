package amqpx_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// exampleServer is the broker of the examples, in memory.
var exampleServer = sync.OnceValue(func() *amqptest.Server { return amqptest.NewServer(amqptest.Options{}) })

// TestMain finds goroutines that were left behind.
func TestMain(m *testing.M) {
	code := m.Run()
	exampleServer().Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// brokerURL is AMQP_URL in an application.
func brokerURL() string {
	url, err := exampleServer().Listen()
	if err != nil {
		panic(err)
	}
	return url
}
