package servers_test

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

type server struct{ closed *atomic.Int64 }

func (s server) Close() error { s.closed.Add(1); return nil }

// All callers receive the same server for a key, even if they ask for it concurrently. If the server fails to start,
// all of them receive the error, and the server is not closed.
func TestShared(t *testing.T) {
	t.Setenv(servers.EnvSkip, "")
	var all servers.Shared[string, server]
	var started, closed atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		for _, key := range []string{"good", "bad"} {
			wg.Go(func() {
				_, err := all.Use(t, key, func() (server, error) {
					started.Add(1)
					if key == "bad" {
						return server{}, os.ErrNotExist
					}
					return server{&closed}, nil
				})
				if want := map[string]error{"bad": os.ErrNotExist}[key]; !errors.Is(err, want) {
					t.Errorf("key %s: got error %v, want %v", key, err, want)
				}
			})
		}
	}
	wg.Wait()
	if err := errors.Join(all.Close(), all.Close()); err != nil || started.Load() != 2 || closed.Load() != 1 {
		t.Errorf("%d servers were started and %d closed, error %v, want 2, 1 and no error", started.Load(), closed.Load(), err)
	}
}
