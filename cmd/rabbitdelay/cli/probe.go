package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
)

// probe answers those who ask over HTTP whether this process works:
//
//	/healthz   200 while the process runs
//	/readyz    200 while ready says nil, else 503 with what is wrong
//	/metrics   what Prometheus reads
type probe struct {
	http.Handler

	server *http.Server
	at     net.Addr

	mu    sync.Mutex
	ready func() error
}

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// newProbe answers that the process is starting.
func newProbe(metrics http.Handler) *probe {
	p := &probe{ready: func() error { return errStarting }}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, p.check()) })
	mux.Handle("GET /metrics", metrics)
	p.Handler = mux
	return p
}

// answers tells whether a request is the probe's.
func (*probe) answers(r *http.Request) bool {
	return slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, r.URL.Path)
}

// listen answers at address, host:port. One that cannot be used is an error.
func (p *probe) listen(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--probe: %w; expected HOST:PORT, such as 127.0.0.1:8087 or :8087", err)
	}
	p.at = l.Addr()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: serveHeaderTimeout, ReadTimeout: serveReadTimeout, WriteTimeout: serveWriteTimeout, IdleTimeout: serveIdleTimeout}
	go func() { _ = p.server.Serve(l) }() // until close
	return nil
}

// set makes ready decide from now on.
func (p *probe) set(ready func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
}

func (p *probe) check() error {
	p.mu.Lock()
	ready := p.ready
	p.mu.Unlock()
	return ready()
}

func (p *probe) close() { _ = p.server.Close() }

func answer(w http.ResponseWriter, err error) {
	out := struct {
		OK      bool   `json:"ok"`
		Problem string `json:"problem,omitempty"`
	}{OK: err == nil}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		out.Problem = err.Error()
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	text, _ := json.Marshal(out) //nolint:errchkjson // text and a boolean
	_, _ = w.Write(text)         // who asked may have gone
}
