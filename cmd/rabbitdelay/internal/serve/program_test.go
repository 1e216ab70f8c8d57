package serve_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// openDB opens the database file of clitest.NewDB, which the program also uses.
func openDB(t *testing.T, url string) *sql.DB {
	t.Helper()
	file := strings.TrimPrefix(url, "sqlite:")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(180000)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// The examples in docs/api.md work as described.
func TestExamplesOfTheAPI(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("skipped: curl is not installed")
	}
	text, err := os.ReadFile("../../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(text), "\n## Examples\n")
	_, script, _ := strings.Cut(examples, "```sh\n")
	script, _, ok := strings.Cut(script, "```")
	if !ok || strings.Count(script, "curl ") != 9 {
		t.Fatalf("docs/api.md contains\n%s\nwant a script with 9 curl commands under the heading Examples", script)
	}
	b := clitest.NewBroker(t, amqptest.Options{})
	s := start(t, "--db", clitest.NewDB(t), "--url", b.URL)
	s.until("/readyz", http.StatusOK)
	script = strings.ReplaceAll(script, "http://127.0.0.1:8086", s.url)
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("running the examples: %v\n%s", err, out)
	}
	for _, want := range []string{
		`{"id":"order-42-expire","created":true}`, `"why":"it is due at`, `"version":2`, `{"dry_run":true,"matching":1}`,
		`"state":"running"`, `"name":"nightly"`, `"broker":{"version":`, `"openapi":"3.1.0"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the examples printed\n%.4000s\nwant %s in it", out, want)
		}
	}
	code, stdout := s.stop()
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if !json.Valid([]byte(stdout)) {
		t.Errorf("the result is not JSON: %s", stdout)
	}
	if !strings.Contains(s.log.String(), `"action":"bulk.reschedule-by"`) {
		t.Errorf("got the log %s, want an entry with \"action\":\"bulk.reschedule-by\"", s.log.String())
	}
}

// Without a broker, serve answers requests and reports that. When the broker becomes reachable, it starts to relay.
func TestServeWithoutBroker(t *testing.T) {
	dbURL := clitest.NewDB(t)
	at := clitest.FreeAddress(t)
	s := start(t, "--db", dbURL, "--url", "amqp://guest:guest@"+at+"/")
	s.expect("/readyz", http.StatusServiceUnavailable, `"ok":false`)
	s.expect("/api/v1/overview", http.StatusOK, "connection refused")
	if _, text := s.get("/api/v1/overview"); strings.Contains(text, "guest:guest") {
		t.Errorf("got the overview %s, want it without the password", text)
	}
	s.expect("/", http.StatusOK, "connection refused")
	s.expect("/metrics", http.StatusOK, "go_goroutines")

	store, err := schedule.New(openDB(t, dbURL), nil, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	task := schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now()}
	if err := store.Schedule(t.Context(), schedule.NoTx, task); err != nil {
		t.Fatal(err)
	}
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	forward(t, at, srv)
	s.until("/readyz", http.StatusOK)
	clitest.Await(t, "the task is sent", func() bool {
		task, err := store.Get(t.Context(), schedule.NoTx, "a")
		return err == nil && task.Sends == 1
	})
	code, stdout := s.stop()
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if !strings.Contains(stdout, `"relayed":1`) {
		t.Errorf("got the result %s, want \"relayed\":1 in it", stdout)
	}
}

// forward makes an in-memory server reachable at a TCP address.
func forward(t *testing.T, at string, srv *amqptest.Server) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := srv.Dial(context.Background(), "tcp", at)
			if err != nil {
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
}

// If serve is stopped while a requeue job is running, the job counts as interrupted and not as failed.
func TestServeInterruptsJobs(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	b.Fill(t, "lying", 100)
	b.Fill(t, "orders", 0)
	dbURL := clitest.NewDB(t)
	s := start(t, "--db", dbURL, "--url", b.URL)
	s.until("/readyz", http.StatusOK)
	code, text := s.do(http.MethodPost, "/api/v1/requeue", `{"queue":"lying","to_queue":"orders","limit":100,"rate":20}`)
	if code != http.StatusOK {
		t.Fatalf("starting the requeue: got %d %s, want 200", code, text)
	}
	clitest.Await(t, "messages are sent", func() bool { q, _ := b.Queue("orders"); return q.Ready >= 3 })
	if code, _ := s.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	var state, why string
	var done int
	const job = "SELECT state, done, error FROM rabbitdelay_audit WHERE action = 'requeue'"
	if err := openDB(t, dbURL).QueryRowContext(t.Context(), job).Scan(&state, &done, &why); err != nil {
		t.Fatal(err)
	}
	if state != "interrupted" {
		t.Errorf("the job's state is %s (%s), want interrupted", state, why)
	}
	if sent := b.Ready(t, "orders"); done != sent {
		t.Errorf("the job reports %d messages, want %d, the number in the queue orders", done, sent)
	}
}

// Without a database, serve shows the broker and can requeue, and requests for tasks return an error with the reason.
func TestServeWithoutDatabase(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: b.Server.URL(), Dial: b.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.Background()) }()
	if err := client.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	s := start(t, "--url", b.URL)
	s.until("/readyz", http.StatusOK)
	s.expect("/api/v1/tasks", http.StatusServiceUnavailable, "this process has no task database")
	s.expect("/api/v1/status", http.StatusOK, `"ready":1`)
	s.expect("/", http.StatusOK, "<html")
	if code, text := s.do(http.MethodPost, "/api/v1/requeue", `{"queue":"orders.dead","dry_run":true}`); code != http.StatusOK {
		t.Errorf("requeue: got %d %s, want 200", code, text)
	}
}

// With --probe, only that address answers probes, and the main address does not.
func TestServeProbe(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil { // its group cannot write to it, whatever the umask is
		t.Fatal(err)
	}
	users := filepath.Join(folder, "users.yaml")
	added := clitest.RunWith(t.Context(), "correct horse battery\n", "users", "add", "anna", "--role", "operator", "--users", users)
	if added.Code != 0 {
		t.Fatalf("users add: got %v, want exit code 0", added)
	}
	at := clitest.FreeAddress(t)
	s := run(t, "--db", clitest.NewDB(t), "--url", b.URL, "--listen", "127.0.0.1:0", "--users", users,
		"--probe", at, "--path-prefix", "/delays")
	probe := &running{t: t, url: "http://" + at, log: s.log}
	probe.until("/readyz", http.StatusOK)
	_, rest, _ := strings.Cut(s.log.String(), `"url": "http://`)
	console, _, _ := strings.Cut(rest, "/delays")
	s.url = "http://" + console
	for path, code := range map[string]int{
		"/healthz":                   http.StatusUnauthorized,
		"/metrics":                   http.StatusUnauthorized,
		"/delays/":                   http.StatusUnauthorized,
		"/delays/api/v1/counts":      http.StatusUnauthorized,
		"/delays/assets/console.css": http.StatusOK,
	} {
		s.expect(path, code, "")
	}
	probe.expect("/metrics", http.StatusOK, "rabbitdelay_")
	probe.expect("/delays/api/v1/counts", http.StatusNotFound, "")
}

// Clients that send their requests slowly do not keep other requests from being answered, and are disconnected.
func TestServeCutsOffSlowRequests(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	s := start(t, "--db", clitest.NewDB(t), "--url", b.URL)
	var slow []net.Conn
	for range 200 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		slow = append(slow, c)
	}
	s.expect("/api/v1/counts", http.StatusOK, "")
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(c); err != nil {
			t.Fatalf("reading from the connection of a slow request: got error %v, want it closed by serve", err)
		}
	}
}

// If the database does not answer when serve starts, serve is not ready and reports why.
func TestServeWithAHungDatabase(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	l, err := clitest.Hung()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	before := app.Answering
	app.Answering = 300 * time.Millisecond
	t.Cleanup(func() { app.Answering = before })
	for _, more := range []string{"", "--no-relay"} {
		t.Run("serve "+more, func(t *testing.T) {
			s := start(t, append(strings.Fields(more), "--db", "postgres://shop:hunter2@"+l.Addr().String()+"/shop", "--url", b.URL)...)
			clitest.Await(t, "the hung database is reported", func() bool {
				code, text := s.get("/readyz")
				if code != http.StatusServiceUnavailable {
					t.Fatalf("readyz: got %d %s, want 503", code, text)
				}
				return strings.Contains(text, "the database has not answered within ")
			})
			s.stop()
		})
	}
}
