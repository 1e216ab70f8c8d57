package console

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Clients that never read their event stream do not delay other clients, use little memory and are disconnected.
func TestStreamsThatAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 50
		w := newWorld(t)
		for i := range 50 {
			check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: fmt.Sprint(i), Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
		}
		var open atomic.Int64
		server, client := serveInMemory(w.c, func(s *http.Server) {
			s.ConnState = func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
				}
			}
		})
		defer server.Close()
		used := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc + m.StackInuse)
		}
		before := used()
		paths := []string{"/live", "/live-tasks", "/api/v1/events"}
		dial := server.Listener.(*memoryListener).dial
		for range each {
			for _, path := range paths {
				c, err := dial(t.Context(), "", "")
				check(t, err)
				t.Cleanup(func() { _ = c.Close() })
				_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
				check(t, err)
				answer, err := http.ReadResponse(bufio.NewReader(c), nil) // reads only the header
				check(t, err)
				t.Cleanup(func() { _ = answer.Body.Close() })
			}
		}
		synctest.Wait()
		if n := open.Load(); n != int64(each*len(paths)) {
			t.Fatalf("%d connections are open, want %d", n, each*len(paths))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live", http.NoBody)
		check(t, err)
		got, err := client.Do(r)
		check(t, err)
		defer got.Body.Close()
		events := 0
		most := int64(0)
		lines := bufio.NewReader(got.Body)
		for open.Load() > 1 || events < 3 {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the stream of a client that reads ended after %d events, while %d clients do not read: %v", events, open.Load()-1, err)
			}
			if line == "\n" {
				events++
				most = max(most, used()-before)
			}
		}
		t.Logf("%d events arrived while %d clients did not read; these used %d KiB", events, each*len(paths), most>>10)
		if most > each*int64(len(paths))*128<<10 {
			t.Errorf("%d clients that do not read use %d KiB, want at most 128 KiB each", each*len(paths), most>>10)
		}
	})
}
