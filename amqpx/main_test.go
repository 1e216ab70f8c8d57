package amqpx_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// exampleServer is the in-memory broker of the examples.
var exampleServer = sync.OnceValue(func() *amqptest.Server { return amqptest.NewServer(amqptest.Options{}) })

// TestMain fails if goroutines were left running.
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

// brokerURL returns the URL of the examples' broker. An application would read it from its configuration.
func brokerURL() string {
	url, err := exampleServer().Listen()
	if err != nil {
		panic(err)
	}
	return url
}
