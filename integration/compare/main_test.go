package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	code := tier.Run(m, tier.Plan{}, nil)
	if shared.env != nil {
		if err := shared.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// shared has the servers that all tests use.
var shared struct {
	once sync.Once
	*env
	err error
}

func ready(t *testing.T) *env {
	t.Helper()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	shared.once.Do(func() {
		shared.env, shared.err = start(context.Background(), func(line string) { t.Log(line) })
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.env
}
