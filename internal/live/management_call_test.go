package live_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
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
			_ = json.NewEncoder(w).Encode(map[string]int{"twice": 2 * sent["count"]}) // ignore the error: if this fails, the client's call fails too
		case "/api/health":
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(strings.Repeat("x", 1<<20))) // ignore the error: if this fails, the client's call fails too
		case "/api/secret":
			w.WriteHeader(http.StatusUnauthorized)
		case "/api/nothing":
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer s.Close()
	i := inspector(t, s)
	if i.Vhost() != "a/b" || strings.Contains(i.Endpoint(), "hidden") || i.Endpoint() != s.URL {
		t.Errorf(`the management API has the virtual host %q and the endpoint %q, want "a/b" and %q, without the password`, i.Vhost(), i.Endpoint(), s.URL)
	}
	var got struct{ Twice int }
	x, err := i.Call(t.Context(), http.MethodPost, i.InVhost("queues", "c/d")+"/get", map[string]int{"count": 3}, &got)
	if err != nil || got.Twice != 6 || !x.Date.Equal(time.Unix(1_700_000_000, 0)) || x.Received.Before(x.Sent) || x.Sent.IsZero() {
		t.Errorf("POST: got the answer %+v, the exchange %+v and the error %v, want Twice = 6, the answer's date, the times of sending and receiving, and no error", got, x, err)
	}
	_, err = i.Call(t.Context(), http.MethodGet, "/api/health", nil, nil)
	status, ok := errors.AsType[*live.StatusError](err)
	if !ok || status.Code != 503 || len(status.Body) != 64<<10 || live.IsDenied(err) || strings.Contains(err.Error(), "xxx") {
		t.Errorf("GET with the status 503: got %v, want a *StatusError with 64 KiB of the body, which its text does not contain", err)
	}
	if _, err := i.Call(t.Context(), http.MethodGet, "/api/secret", nil, nil); !live.IsDenied(err) {
		t.Errorf("GET with the status 401: got %v, want live.IsDenied = true", err)
	}
	if _, err := i.Call(t.Context(), http.MethodGet, "/api/nothing", nil, nil); err != nil {
		t.Errorf("GET with an empty answer: got %v, want no error", err)
	}
}

// If something other than the management API answers, such as a proxy with an HTML page, the error says so.
func TestAnswerOfSomethingElse(t *testing.T) {
	for body, kind := range map[string]string{"<html>login</html>": "text/html; charset=utf-8", "[{": "application/json", "": ""} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{kind}
			_, _ = w.Write([]byte(body)) // ignore the error: if this fails, the client's call fails too
		}))
		m, err := live.NewManagement(live.ManagementConfig{URL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Queues(t.Context())
		wrong, ok := errors.AsType[*live.AnswerError](err)
		if !ok || wrong.Type != kind || live.Failure(err) != "answered with something else" || strings.Contains(err.Error(), "proxy") == (kind == "application/json") {
			t.Errorf("answer %q: got %v (Failure: %s), want an *AnswerError with the type %q, which mentions a proxy only for a type other than JSON", body, err, live.Failure(err), kind)
		}
		s.Close()
	}
}

// With several nodes, the first one that answers is used. A request that may have changed something is not repeated on
// another node.
func TestManagementOfSeveralNodes(t *testing.T) {
	var asked atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("{}")) // ignore the error: if this fails, the client's call fails too
	}))
	t.Cleanup(up.Close)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(hangsUp.Close)
	for range 16 { // which node is tried first is random
		m, err := live.NewManagement(live.ManagementConfig{URL: down.URL, URLs: []string{up.URL}})
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			if _, err := m.Call(t.Context(), method, "/api/x", nil, nil); err != nil {
				t.Errorf("Call with %s: got %v, want no error", method, err)
			}
		}
		if m.Endpoint() != up.URL {
			t.Errorf("the endpoint is %s, want %s, which answered", m.Endpoint(), up.URL)
		}
		if m, err = live.NewManagement(live.ManagementConfig{URL: hangsUp.URL, URLs: []string{up.URL}}); err != nil {
			t.Fatal(err)
		}
		first, before := m.Endpoint(), asked.Load()
		_, err = m.Call(t.Context(), http.MethodPost, "/api/x", strings.NewReader("{}"), nil)
		if (first == hangsUp.URL) != (err != nil) || (first == hangsUp.URL) != (asked.Load() == before) {
			t.Errorf("a POST that tries %s first: got %v and %d requests at the other node, want an error and 0 for the node that hangs up, and otherwise success", first, err, asked.Load()-before)
		}
		if _, err := m.Call(t.Context(), http.MethodGet, "/api/x", nil, nil); err != nil {
			t.Errorf("a GET that can be repeated on the other node: got %v, want no error", err)
		}
	}
	m, err := live.NewManagement(live.ManagementConfig{URL: strings.Replace(down.URL, "//", "//u:hidden@", 1), URLs: []string{down.URL}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Call(t.Context(), http.MethodGet, "/api/x", nil, nil)
	if err == nil {
		t.Fatal("Call with both servers down: got no error, want one")
	}
	if n := strings.Count(err.Error(), "connection refused"); n != 2 {
		t.Errorf("Call with both servers down: got %d refusals in the error, want 2: %v", n, err)
	}
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("Call with both servers down: got %v, want an error without the password", err)
	}
}
