package serve_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// running is a running rabbitdelay serve.
type running struct {
	t    *testing.T
	url  string
	stop func() (code int, stdout string)
	log  *clitest.Buffer
}

// start starts serve at a free address, and waits until it answers.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	at := clitest.FreeAddress(t)
	s := run(t, append([]string{"--json", "--listen", at}, args...)...)
	s.url = "http://" + at
	s.until("/healthz", http.StatusOK)
	return s
}

// run starts serve, and stops it when the test ends.
func run(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &running{t: t, log: &clitest.Buffer{}}
	var out clitest.Buffer
	ended := make(chan int, 1)
	go func() { ended <- clitest.RunTo(ctx, &out, s.log, append([]string{"serve"}, args...)...) }()
	s.stop = sync.OnceValues(func() (int, string) {
		cancel()
		return <-ended, out.String()
	})
	t.Cleanup(func() { s.stop() })
	return s
}

// do sends a request and returns the response. The code is 0 if there is no response.
func (s *running) do(method, path, body string) (code int, text string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer got.Body.Close()
	answer, _ := io.ReadAll(got.Body) // a truncated response is returned as it is
	return got.StatusCode, string(answer)
}

func (s *running) get(path string) (code int, text string) {
	s.t.Helper()
	return s.do(http.MethodGet, path, "")
}

// until repeats a request until the response has the given code.
func (s *running) until(path string, code int) {
	s.t.Helper()
	clitest.Await(s.t, path+" returns the expected code", func() bool { got, _ := s.get(path); return got == code })
}

// expect fails the test unless the response has the given code and text.
func (s *running) expect(path string, code int, want string) {
	s.t.Helper()
	got, text := s.get(path)
	if got != code {
		s.t.Errorf("%s: code %d, want %d: %.300s", path, got, code, text)
	}
	if !strings.Contains(text, want) {
		s.t.Errorf("%s: got %.2000s, want %q in it", path, text, want)
	}
}
