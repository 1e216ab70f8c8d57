package live_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

func TestCall(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "u" || password != "hidden" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.EscapedPath() {
		case "/api/queues/a%2Fb/c%2Fd/get":
			var sent map[string]int
			if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			w.Header().Set("Date", "Tue, 14 Nov 2023 22:13:20 GMT")
			_ = json.NewEncoder(w).Encode(map[string]int{"twice": 2 * sent["count"]}) // the client's loss
		case "/api/health":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(strings.Repeat("x", 1<<20))) // the client's loss
		case "/api/secret":
			w.WriteHeader(http.StatusUnauthorized)
		case "/api/nothing":
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer s.Close()
	i := inspector(t, s)
	if i.Vhost() != "a/b" || strings.Contains(i.Endpoint(), "hidden") || i.Endpoint() != s.URL {
		t.Errorf("virtual host %q, endpoint %q", i.Vhost(), i.Endpoint())
	}
	var got struct{ Twice int }
	x, err := i.Call(t.Context(), http.MethodPost, i.InVhost("queues", "c/d")+"/get", map[string]int{"count": 3}, &got)
	if err != nil || got.Twice != 6 || !x.Date.Equal(time.Unix(1_700_000_000, 0)) || x.Received.Before(x.Sent) || x.Sent.IsZero() {
		t.Errorf("got %+v, %+v, %v", got, x, err)
	}
	_, err = i.Call(t.Context(), http.MethodGet, "/api/health", nil, nil)
	status, ok := errors.AsType[*live.StatusError](err)
	if !ok || status.Code != 503 || len(status.Body) != 64<<10 || live.IsDenied(err) || strings.Contains(err.Error(), "xxx") {
		t.Errorf("got %v", err)
	}
	if _, err := i.Call(t.Context(), http.MethodGet, "/api/secret", nil, nil); !live.IsDenied(err) {
		t.Errorf("got %v", err)
	}
	if _, err := i.Call(t.Context(), http.MethodGet, "/api/nothing", nil, nil); err != nil {
		t.Error(err)
	}
}
