package messages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
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
		if err := s.check(); err != nil || string(s.next(0).Body) != want {
			t.Errorf("--body %q is %q, %v", flag, s.next(0).Body, err)
		}
	}
	s := &sender{App: a, count: 3, concurrency: 1, delay: app.Duration(time.Second), spread: app.Duration(2 * time.Second), headers: []string{"a=b=c", "d="}}
	s.message.Queue, s.message.ID = "q", "x"
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	drawn := map[time.Duration]bool{}
	for range 1000 {
		m := s.next(2)
		if m.ID != "x-3" || m.Delay < time.Second || m.Delay > 3*time.Second || !m.DeliverAt.IsZero() || m.Headers["a"] != "b=c" || m.Headers["d"] != "" {
			t.Fatalf("got %+v", m)
		}
		drawn[m.Delay] = true
	}
	if len(drawn) < 100 {
		t.Errorf("1000 draws from 2001 delays gave %d different ones", len(drawn))
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s.at, s.count = app.Instant(at), 1
	if m := s.next(0); m.ID != "x" || m.Delay != 0 || m.DeliverAt.Before(at) || m.DeliverAt.After(at.Add(2*time.Second)) {
		t.Errorf("got %+v", m)
	}
}
