package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// screen is an output that can be read while a command writes to it.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// While the demo is held open, tasks that are scheduled in its console are handled.
func TestDemoHeldOpen(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Setenv("TMPDIR", t.TempDir())
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	url, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out screen
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"demo", "--hold", "--orders", "2", "--posts", "4", "--url", url}, strings.NewReader(""), io.Discard, &out)
	}()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !ok(); <-time.After(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("condition not met within two minutes: %s\n%s", what, &out)
			}
		}
	}
	until("the demo is held open", func() bool { return strings.Contains(out.String(), "the console stays open") })
	at := regexp.MustCompile(`console: (http://\S+)`).FindStringSubmatch(out.String())
	if at == nil {
		t.Fatalf("got the output %s, want a link to the console in it", &out)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, path, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, at[1]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		text, _ := io.ReadAll(got.Body) // a part of the body is enough
		return string(text)
	}
	queue := regexp.MustCompile(`"queue":"([^"]+posts\.publish)"`).FindStringSubmatch(ask(http.MethodGet, "api/v1/tasks", ""))
	if queue == nil {
		t.Fatal("the console's tasks have no queue posts.publish, want one")
	}
	if text := ask(http.MethodPut, "api/v1/tasks/mine", `{"queue":"`+queue[1]+`","due":"now"}`); !strings.Contains(text, `"created":true`) {
		t.Fatalf(`scheduling a task: got %s, want "created":true`, text)
	}
	until("the task is done", func() bool {
		return strings.Contains(ask(http.MethodGet, "api/v1/tasks/mine", ""), `"status":"done"`)
	})
	until("the console does not report \"No relay runs\"", func() bool { return !strings.Contains(ask(http.MethodGet, "", ""), "No relay runs") })
	interrupt()
	if code := <-ended; code != 0 {
		t.Errorf("got exit code %d, want 0: %s", code, &out)
	}
}
