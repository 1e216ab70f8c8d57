//go:build unix

package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// narrow is a listener whose connections hold little of what nobody reads.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(1) // the least that there is
	}
	return c, err
}

// littleRoom leaves a connection the least room for what comes in.
func littleRoom(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
	return errors.Join(cerr, err)
}

// Clients of event streams that never read hold up nobody, cost little memory and are
// cut off.
func TestStreamsOfWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	const each = 50
	w := newWorld(t)
	for i := range 50 {
		check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: fmt.Sprint(i), Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
	}
	w.server.Close()
	server := httptest.NewUnstartedServer(w.c)
	server.Listener = narrow{server.Listener}
	var open atomic.Int64
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := used()
	address := server.Listener.Addr().String()
	paths := []string{"/live", "/live-tasks", "/api/v1/events"}
	dialer := net.Dialer{Control: littleRoom}
	for range each {
		for _, path := range paths {
			c, err := dialer.DialContext(t.Context(), "tcp", address)
			check(t, err)
			t.Cleanup(func() { _ = c.Close() })
			_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			check(t, err)
		}
	}
	for deadline := time.Now().Add(time.Minute); open.Load() < int64(each*len(paths)) && time.Now().Before(deadline); {
		<-time.After(10 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live", http.NoBody)
	check(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(r)
	check(t, err)
	defer got.Body.Close()
	events := 0
	most := int64(0)
	lines := bufio.NewReader(got.Body)
	for open.Load() > 1 || events < 3 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d events, beside %d who do not read: %v", events, open.Load()-1, err)
		}
		if line == "\n" {
			events++
			most = max(most, used()-before)
		}
	}
	t.Logf("%d events while %d did not read, who took %d KiB", events, each*len(paths), most>>10)
	if most > each*int64(len(paths))*128<<10 {
		t.Errorf("%d who do not read take %d KiB, expected at most 128 for each", each*len(paths), most>>10)
	}
}
