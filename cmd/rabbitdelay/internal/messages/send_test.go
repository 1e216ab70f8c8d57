package messages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

func TestSenderMessages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app.App{Program: program.New(&term.Terminal{Stdin: strings.NewReader("from standard input")})}
	for flag, want := range map[string]string{"plain": "plain", "": "", "-": "from standard input", "@" + file: "from a file"} {
		s := &sender{App: a, body: flag, count: 1, concurrency: 1}
		s.message.Queue = "q"
		if err := s.check(); err != nil {
			t.Errorf("--body %q: got %v, want no error", flag, err)
		}
		if got := string(s.next(0).Body); got != want {
			t.Errorf("--body %q: got the body %q, want %q", flag, got, want)
		}
	}
	s := &sender{
		App: a, count: 3, concurrency: 1, headers: []string{"a=b=c", "d="},
		delay: app.Duration(time.Second), spread: app.Duration(2 * time.Second),
	}
	s.message.Queue, s.message.ID = "q", "x"
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	drawn := map[time.Duration]bool{}
	for range 1000 {
		m := s.next(2)
		if m.Delay < time.Second || m.Delay > 3*time.Second {
			t.Fatalf("the delay is %s, want 1s to 3s", m.Delay)
		}
		drawn[m.Delay] = true
	}
	third := s.next(2)
	if third.ID != "x-3" {
		t.Errorf("the id is %s, want x-3", third.ID)
	}
	if !third.DeliverAt.IsZero() {
		t.Errorf("a message with a delay has the due time %s, want none", third.DeliverAt)
	}
	if got := third.Headers["a"]; got != "b=c" {
		t.Errorf("the header a is %q, want b=c", got)
	}
	if got := third.Headers["d"]; got != "" {
		t.Errorf("the header d is %q, want none", got)
	}
	if len(drawn) < 100 {
		t.Errorf("1000 messages have %d different delays, want at least 100", len(drawn))
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s.at, s.count = app.Instant(at), 1
	single := s.next(0)
	if single.ID != "x" {
		t.Errorf("the id is %s, want x", single.ID)
	}
	if single.Delay != 0 {
		t.Errorf("a message with a due time has the delay %s, want none", single.Delay)
	}
	if single.DeliverAt.Before(at) || single.DeliverAt.After(at.Add(2*time.Second)) {
		t.Errorf("the due time is %s, want %s or up to 2s later", single.DeliverAt, at)
	}
}
