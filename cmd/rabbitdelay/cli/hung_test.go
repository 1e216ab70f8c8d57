package cli

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// hungDatabase accepts connections and says nothing.
func hungDatabase(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	before := app.Answering
	app.Answering = 300 * time.Millisecond
	t.Cleanup(func() { app.Answering = before })
	return "postgres://shop:hunter2@" + l.Addr().String() + "/shop"
}

// No command waits for a database that hangs, and those that show the broker too show it.
func TestHungDatabase(t *testing.T) {
	b := newByHand(t)
	b.fillWith(t, "q.dead", deadLetters("q", 1, "rejected")...)
	db := hungDatabase(t)
	const silent = "the database has not answered within "
	for args, want := range map[string]struct {
		code           int
		stdout, stderr string
	}{
		"status --peek 0":              {2, "RabbitMQ", ""},
		"trace q-0 --queue q.dead":     {2, "in q.dead", ""},
		"tasks list":                   {1, "", silent},
		"tasks cancel a":               {1, "", silent},
		"schedules list":               {1, "", silent},
		"migrate":                      {1, "", silent},
		"requeue --queue q.dead --yes": {1, "", silent},
		"doctor --amqp-only --peek 0":  {1, silent, ""},
	} {
		code, stdout, stderr := b.run(t, append(strings.Fields(args), "--db", db)...)
		if code != want.code || !strings.Contains(stdout, want.stdout) || !strings.Contains(stderr, want.stderr) || strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%s: exit %d, want %d\n%s\n%s", args, code, want.code, stdout, stderr)
		}
	}
}

// Nothing is ready beside a database that hung when serve began.
func TestServeBesideAHungDatabase(t *testing.T) {
	_, broker := memoryBroker(t)
	db := hungDatabase(t)
	for _, more := range [][]string{nil, {"--no-relay"}} {
		s := startServe(t, append(more, "--db", db, "--url", broker)...)
		for deadline := time.Now().Add(time.Minute); ; {
			code, text := s.get("/readyz")
			if code != 503 {
				t.Fatalf("%v: ready: %d %s", more, code, text)
			}
			if strings.Contains(text, "the database has not answered within ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: %s\n%s", more, text, s.log)
			}
			<-time.After(20 * time.Millisecond)
		}
		s.stop()
	}
}
