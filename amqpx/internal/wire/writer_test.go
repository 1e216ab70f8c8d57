package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if a, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// Everything written before Close arrives, in order for each goroutine, and writes are not interleaved.
func TestWriterDeliversAllWrites(t *testing.T) {
	raw, peer := tcpPair(t)
	c := newWriter(t.Context(), raw)
	const writers, each, size = 8, 500, 64
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				p := bytes.Repeat([]byte{byte(w)}, size)
				p[0], p[size-1] = byte(i), byte(i)
				if n, err := c.Write(p); n != size || err != nil {
					t.Errorf("Write: got %d, %v, want %d and no error", n, err, size)
				}
				clear(p) // Write must not retain the slice
			}
		})
	}
	got := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(peer); got <- b }()
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	all := <-got
	if len(all) != writers*each*size {
		t.Fatalf("the peer received %d bytes, want %d", len(all), writers*each*size)
	}
	next := [writers]int{}
	for i := 0; i < len(all); i += size {
		p := all[i : i+size]
		w := int(p[1])
		if int(p[0]) != next[w]%256 || p[0] != p[size-1] || !bytes.Equal(p[1:size-1], bytes.Repeat(p[1:2], size-2)) {
			t.Fatalf("bytes from %d: got %v, want write %d of goroutine %d in one piece", i, p, next[w], w)
		}
		next[w]++
	}
}

// Write and Close return even if the peer does not read.
func TestWriterNeverWaitsForThePeer(t *testing.T) {
	raw, _ := tcpPair(t)
	c := newWriter(t.Context(), raw)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 64 {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				t.Errorf("Write: got %v, want nil", err)
			}
		}
		_ = c.Close()
	}()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		t.Fatal("Write or Close is still waiting after 3 minutes, want it to return although the peer does not read")
	}
	if _, err := c.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: got %v, want net.ErrClosed", err)
	}
}

func TestWriterReportsABrokenSocket(t *testing.T) {
	raw, peer := tcpPair(t)
	c := newWriter(t.Context(), raw)
	_ = peer.(*net.TCPConn).SetLinger(0)
	_ = peer.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("Read from a reset connection: got nil, want an error")
	}
	deadline := time.After(3 * time.Minute)
	for {
		if _, err := c.Write(make([]byte, 1024)); err != nil {
			break
		}
		select {
		case <-deadline:
			t.Fatal("Write to a reset connection still returns nil after 3 minutes, want an error")
		default:
		}
	}
	_ = c.Close()
}
