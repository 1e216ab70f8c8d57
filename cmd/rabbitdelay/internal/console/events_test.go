package console

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// Event streams stay open beyond the server's deadlines for requests.
func TestEventsOutliveDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		server, client := serveInMemory(w.c, func(s *http.Server) {
			s.ReadTimeout, s.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
		})
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, path := range []string{"/api/v1/events", "/live"} {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
			check(t, err)
			got, err := client.Do(r)
			check(t, err)
			events := 0
			for s := bufio.NewScanner(got.Body); events < 2 && s.Scan(); { // the second event arrives a few seconds later
				if len(s.Bytes()) == 0 {
					events++
				}
			}
			_ = got.Body.Close()
			if events < 2 {
				t.Errorf("stream %s ended after %d events, want at least 2", path, events)
			}
		}
	})
}

// When the session ends, its event stream ends too.
func TestEventsEndWithTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, users := withUsers(t)
		w := newWorld(t, users)
		for i, path := range []string{"/live", "/live-tasks", "/api/v1/events"} {
			otto, _ := w.login("otto", password)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path, http.NoBody)
			check(t, err)
			otto.with(r)
			got, err := w.client.Do(r)
			check(t, err)
			if got.StatusCode != http.StatusOK {
				t.Fatalf("%s: got %d, want 200", path, got.StatusCode)
			}
			role := []Role{RoleViewer, RoleOperator}[i%2]
			_, err = SetUser(file, "otto", role, []byte(password))
			check(t, err)
			cheapen(t, file)
			if _, err := io.Copy(io.Discard, got.Body); err != nil {
				t.Errorf("reading the stream %s until it ends: got error %v, want nil", path, err)
			}
			_ = got.Body.Close()
		}
	})
}
