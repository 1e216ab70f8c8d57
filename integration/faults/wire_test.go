package faults

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// answering is a server that records the data it receives and answers each read with "ok".
type answering struct {
	ln   net.Listener
	mu   sync.Mutex
	got  string
	done sync.WaitGroup
}

func newAnswering(t *testing.T) *answering {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &answering{ln: ln}
	a.done.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			a.done.Go(func() {
				defer c.Close()
				buf := make([]byte, 1024)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					a.mu.Lock()
					a.got += string(buf[:n])
					a.mu.Unlock()
					if _, err := c.Write([]byte("ok")); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); a.done.Wait() })
	return a
}

func (a *answering) received() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got
}

// ask writes what to c and waits for the answer. It returns an error if the connection is closed first.
func ask(t *testing.T, c net.Conn, what string) error {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(servers.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(what)); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 2))
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		t.Fatalf("%q: timed out after %v, want an answer or a closed connection", what, servers.Patience)
	}
	return err
}

func TestWire(t *testing.T) {
	for name, c := range map[string]struct {
		cut      Kind
		answered bool
		received string
	}{
		"no fault":               {"", true, "BEGIN COMMIT "},
		"in place of the commit": {LoseCommit, false, "BEGIN "},
		"in place of its answer": {LoseAnswer, false, "BEGIN COMMIT "},
	} {
		t.Run(name, func(t *testing.T) {
			server := newAnswering(t)
			w, err := newWire(server.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.close)
			client, err := net.Dial("tcp", w.addr())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := ask(t, client, "BEGIN "); err != nil {
				t.Fatal(err)
			}
			w.cutAt(c.cut)
			if err := ask(t, client, "COMMIT "); (err == nil) != c.answered {
				t.Errorf("the client got error %v, want an error: %t", err, !c.answered)
			}
			if got := server.received(); got != c.received {
				t.Errorf("the server received %q, want %q", got, c.received)
			}
			if (w.count() == 0) != c.answered {
				t.Errorf("the wire was cut %d times, want 0 if an answer arrives and more otherwise (answer: %t)", w.count(), c.answered)
			}
			w.cutAt("")
			again, err := net.Dial("tcp", w.addr())
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := ask(t, again, "COMMIT "); err != nil {
				t.Errorf("COMMIT after the fault: got %v, want no error", err)
			}
		})
	}
}
