package console

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Bounds of the bodies of forms.
const (
	maxForm  = 24 << 20
	maxLogin = 64 << 10
	maxEnded = 4 << 20 // of a session that has ended; it is given back, as with a body of 1 MiB
)

const (
	maxAtOnce = 16              // forms of ended sessions that are read at the same time
	slowForm  = 3 * time.Second // for one of them
	largeBody = 2 << 20         // above it, one request to the API is answered at a time
)

// largeWait is how long another large request waits for its turn.
var largeWait = 10 * time.Second

// turn waits until no other large request is answered. Without ok it has answered itself.
func (c *Console) turn(w http.ResponseWriter, r *http.Request) (end func(), ok bool) {
	if r.ContentLength >= 0 && r.ContentLength <= largeBody {
		return func() {}, true
	}
	select {
	case c.large <- struct{}{}:
		return func() { <-c.large }, true
	case <-r.Context().Done():
	case <-time.After(largeWait):
		w.Header().Set("Retry-After", "10")
		refuse(w, r, http.StatusServiceUnavailable, fmt.Sprintf("another request of more than %d MiB is being read; send it again later, or in parts", largeBody>>20))
	}
	return nil, false
}

// parse reads a form of at most so many bytes. If it returns false, it has answered itself.
func (c *Console) parse(w http.ResponseWriter, r *http.Request, most int64) bool {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if err := r.ParseForm(); err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		refuse(w, r, code, "the form cannot be read: "+err.Error())
		return false
	}
	return true
}

// Bounds of how much of a body is read after its request was answered.
const (
	maxDrain  = 64 << 20
	slowDrain = 10 * time.Second
)

// drained replaces the body of r, and returns what reads the rest of it after the answer.
func drained(w http.ResponseWriter, r *http.Request) func() {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	body := &sentBody{from: r.Body, awaited: r.Header.Get("Expect") != ""}
	r.Body = body
	return func() { body.drain(w) }
}

// sentBody is a request's body. A client that is still sending it when its connection is
// closed sees the connection reset, and not the answer.
type sentBody struct {
	from    io.Reader
	awaited bool // the client waits for the first read before it sends
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.awaited = false
	return b.from.Read(p)
}

// Close does nothing: drain reads the rest, and the server closes its own body.
func (b *sentBody) Close() error { return nil }

// drain reads what the answer did not need, before the answer is sent.
func (b *sentBody) drain(w http.ResponseWriter) {
	if b.awaited {
		return
	}
	// httptest's recorder has no deadlines.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowDrain))
	_, _ = io.CopyN(io.Discard, b.from, maxDrain)
}
