package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Probe returns a handler for health checks. It answers GET /healthz with 200 as long as the process is running. It
// answers GET /readyz with 200 while ready returns nil, and otherwise with 503 and the parts that do not work, as
// {"ok":false,"problem":"…"}. Pass it Service.Health. It requires no login, so its answers leave out the addresses,
// users and queue names that errors of a broker or a database contain. See the log for those. Use /healthz for a
// liveness probe, because a restart does not repair a broker.
func Probe(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	return mux
}

func answer(w http.ResponseWriter, err error) {
	out := struct {
		OK      bool   `json:"ok"`
		Problem string `json:"problem,omitempty"`
	}{OK: err == nil}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		out.Problem = public(err)
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	text, _ := json.Marshal(out) //nolint:errchkjson // never fails for text and a boolean
	_, _ = w.Write(text)         // ignore the error: the client may have disconnected
}

// notReady is the answer for a problem whose details are not shown without a login.
const notReady = "not ready; see the log for the reason"

// public returns the part of an error of Health that may be shown without a login.
func public(err error) string {
	if errors.Is(err, ErrStopping) || errors.Is(err, ErrStarting) {
		return err.Error()
	}
	if known, ok := errors.AsType[interface {
		error
		Public() string
	}](err); ok {
		return known.Public()
	}
	var parts []string
	if client, ok := errors.AsType[*amqpx.HealthError](err); ok {
		for _, p := range client.Problems {
			part, _, _ := strings.Cut(p.Part, " ") // drop a queue's name, which follows
			parts = append(parts, part+": "+p.State)
		}
	}
	if tasks, ok := errors.AsType[*schedule.HealthError](err); ok {
		for _, f := range tasks.Faults {
			parts = append(parts, f.Part+": failing")
		}
	}
	return cmp.Or(strings.Join(slices.Compact(parts), "; "), notReady)
}

// requestDrain is how long ServeHTTP waits for running requests when it stops.
const requestDrain = 10 * time.Second

// ServeHTTP returns a part that serves HTTP requests at addr, which is HOST:PORT. When it stops, it accepts no further
// requests and waits up to 10 s for the running ones. If the address cannot be used, it returns an error, which stops
// the service. If you need other settings, write your own Part.
func ServeHTTP(addr string, h http.Handler) Part {
	return func(ctx context.Context) error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		select {
		case err := <-served:
			return fmt.Errorf("http: %w", err)
		case <-ctx.Done():
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestDrain)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return errors.Join(fmt.Errorf("http: requests were cut off: %w", err), server.Close())
		}
		return nil
	}
}
