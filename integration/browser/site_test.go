package browser

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

const password = "correct horse battery"

// site is a running rabbitdelay serve, under a path prefix.
type site struct {
	url    string // with a trailing slash
	broker *broker.Broker
	db     *sql.DB
	store  *schedule.Store
	file   string // the settings file
}

// settings is the settings file of the tests, with two destinations.
const settings = `
broker: {url: %q, management_url: %q}
delay: {%s}
destinations: [{queue: mail}, {queue: orders}]
`

// layout is small, so that it can be declared quickly.
const layout = "bucket: {radices: [10, 10]}, previous: [{strategy: bucket, radices: [3, 3]}]"

// newSite starts serve on a broker and a database.
func newSite(t *testing.T, b *broker.Broker, delay, databaseURL string, db *sql.DB) *site {
	t.Helper()
	openBrowser(t) // skips the test before anything is started
	s := &site{broker: b, db: db}
	var err error
	if s.store, err = schedule.New(db, nil, schedule.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { // its group cannot write to it, whatever the umask is
		t.Fatal(err)
	}
	file, users := filepath.Join(dir, "delays.yaml"), filepath.Join(dir, "users.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, b.URL(), b.ManagementURL(), delay), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]string{"anna": "operator", "ben": "operator", "vera": "viewer"} {
		add, err := binary.Command(t.Context(), "users", "add", name, "--role", role, "--users", users)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		add.Stdin = strings.NewReader(password + "\n")
		if out, err := add.CombinedOutput(); err != nil {
			t.Fatalf("users add: %v\n%s", err, out)
		}
	}
	s.file = file
	run := func(ctx context.Context, args ...string) (int, string) {
		got := binary.Run(ctx, append(args, "-f", file)...)
		return got.Code, got.Stdout + got.Stderr
	}
	if code, out := run(t.Context(), "apply"); code != 0 {
		t.Fatalf("apply: got exit code %d, want 0\n%s", code, out)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	s.url = "http://" + at + "/delays/"
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if code, out := run(ctx, "serve", "--db", databaseURL, "--listen", at, "--users", users, "--path-prefix", "/delays", "--log-level", "error"); code != 0 {
			t.Errorf("serve: got exit code %d, want 0\n%s", code, out)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	client := &http.Client{Timeout: time.Second}
	for deadline := time.Now().Add(patience); ; {
		if resp, err := client.Get("http://" + at + "/healthz"); err == nil {
			_ = resp.Body.Close()
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("serve does not answer at %s within %v", at, patience)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// add schedules tasks that are due in about a year, so that they stay pending.
func (s *site) add(t *testing.T, queue string, ids ...string) {
	t.Helper()
	for i, id := range ids {
		err := s.store.Schedule(t.Context(), s.db, schedule.Task{
			ID: id, Queue: queue, DeliverAt: time.Now().Add(300*24*time.Hour + time.Duration(i)*time.Hour),
			Body: []byte(`{"secret":"of ` + id + `"}`), ContentType: "application/json", Tags: []string{"demo"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fill schedules n tasks for a queue, and deletes them when the test ends.
func (s *site) fill(t *testing.T, queue string, n int) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := s.db.Exec("DELETE FROM rabbitdelay_tasks WHERE queue = ?", queue); err != nil {
			t.Error(err)
		}
	})
	due := time.Now().Add(200 * 24 * time.Hour)
	for from := 0; from < n; from += 1000 {
		tasks := make([]schedule.Task, 0, 1000)
		for i := from; i < min(n, from+1000); i++ {
			tasks = append(tasks, schedule.Task{ID: fmt.Sprintf("%s-%06d", queue, i), Queue: queue, DeliverAt: due.Add(time.Duration(i) * time.Second)})
		}
		if err := s.store.ScheduleBatch(t.Context(), s.db, tasks); err != nil {
			t.Fatal(err)
		}
	}
}

// declare declares another layout alongside the current one.
func (s *site) declare(t *testing.T, delay string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, s.broker.URL(), s.broker.ManagementURL(), delay), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := binary.Run(t.Context(), "apply", "-f", file); got.Code != 0 {
		t.Fatalf("apply with another layout: got %v, want exit code 0", got)
	}
}

func (s *site) task(t *testing.T, id string) schedule.TaskRow {
	t.Helper()
	x, err := s.store.Get(t.Context(), s.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (s *site) channel(t *testing.T) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(s.broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// die publishes dead letters to the queue's dead-letter queue.
func (s *site) die(t *testing.T, queue string, ids ...string) {
	t.Helper()
	ch := s.channel(t)
	for _, id := range ids {
		err := ch.PublishWithContext(t.Context(), "", queue+".dead", true, false, amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(`<script>document.title = "caught"</script>`), Timestamp: time.Now(),
			Headers: amqp.Table{amqpx.HeaderReason: inspect.ReasonRejected, amqpx.HeaderQueue: queue, amqpx.HeaderError: "no such address"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// lying returns the number of ready messages in a queue.
func (s *site) lying(t *testing.T, queue string) int {
	t.Helper()
	ch := s.channel(t)
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}
