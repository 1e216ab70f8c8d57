package cli

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
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// served is a serve that runs.
type served struct {
	t    *testing.T
	url  string
	stop func() (code int, stdout string)
	log  *lockedBuilder
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// tasksDB is a migrated SQLite file.
func tasksDB(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tasks.db")
	if code, _, errs := run(t, "", "migrate", "--db", "sqlite:"+file); code != 0 {
		t.Fatal(errs)
	}
	return file
}

func startServe(t *testing.T, args ...string) *served {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	s := &served{t: t, url: "http://" + at, log: &lockedBuilder{}}
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, append([]string{"serve", "--json", "--listen", at}, args...), strings.NewReader(""), &out, s.log)
	}()
	code := -1
	s.stop = sync.OnceValues(func() (int, string) {
		cancel()
		code = <-ended
		return code, out.String()
	})
	t.Cleanup(func() { s.stop() })
	s.until("/healthz", 200)
	return s
}

// get is an answer.
func (s *served) get(path string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body) // what there is
	return got.StatusCode, string(text)
}

// until waits for an answer's code.
func (s *served) until(path string, code int) string {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		got, text := s.get(path)
		if got == code {
			return text
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %d %s\n%s", path, got, text, s.log)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func memoryBroker(t *testing.T) (srv *amqptest.Server, url string) {
	t.Helper()
	srv = amqptest.NewServer(amqptest.Options{})
	t.Cleanup(srv.Close)
	url, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return srv, url
}

// The examples of docs/api.md do what stands beside them.
func TestExamplesOfTheAPI(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("skipped: there is no curl")
	}
	text, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "\n## Examples\n")
	_, script, _ := strings.Cut(text2, "```sh\n")
	script, _, ok := strings.Cut(script, "```")
	if !ok || strings.Count(script, "curl ") != 9 {
		t.Fatalf("docs/api.md has other examples than this test expects:\n%s", script)
	}
	file := tasksDB(t)
	_, broker := memoryBroker(t)
	s := startServe(t, "--db", "sqlite:"+file, "--url", broker)
	s.until("/readyz", 200)
	script = strings.ReplaceAll(script, "http://127.0.0.1:8086", s.url)
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`{"id":"order-42-expire","created":true}`, `"why":"it is not due before`, `"version":2`, `{"dry_run":true,"matching":1}`, `"state":"running"`, `"name":"nightly"`, `"broker":{"version":`, `"openapi":"3.1.0"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in\n%.4000s", want, out)
		}
	}
	code, stdout := s.stop()
	var m map[string]any
	if err := json.Unmarshal([]byte(stdout), &m); err != nil || code != 0 {
		t.Errorf("exit %d: %s", code, stdout)
	}
	if !strings.Contains(s.log.String(), `"action":"bulk.move-by"`) {
		t.Errorf("the log has no audit: %s", s.log)
	}
}

// Without a broker it serves, says so, and relays when the broker is there.
func TestServeWithoutBroker(t *testing.T) {
	file := tasksDB(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	s := startServe(t, "--db", "sqlite:"+file, "--url", "amqp://guest:guest@"+at+"/")
	if code, text := s.get("/readyz"); code != 503 || !strings.Contains(text, `"ok":false`) {
		t.Errorf("readyz: %d %s", code, text)
	}
	if code, text := s.get("/api/v1/overview"); code != 200 || !strings.Contains(text, "connection refused") || strings.Contains(text, "guest:guest") {
		t.Errorf("overview: %d %s", code, text)
	}
	if code, text := s.get("/"); code != 200 || !strings.Contains(text, "connection refused") {
		t.Errorf("the page: %d %s", code, text)
	}
	if code, text := s.get("/metrics"); code != 200 || !strings.Contains(text, "go_goroutines") {
		t.Errorf("metrics: %d %.300s", code, text)
	}
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(180000)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	forward(t, at, srv)
	s.until("/readyz", 200)
	for deadline := time.Now().Add(time.Minute); ; {
		if task, err := store.Get(t.Context(), schedule.NoTx, "a"); err == nil && task.Sends == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the task was not sent:\n%s", s.log)
		}
		<-time.After(20 * time.Millisecond)
	}
	if code, stdout := s.stop(); code != 0 || !strings.Contains(stdout, `"relayed":1`) {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

// A requeue that is under way when serve is stopped is interrupted, and did not fail.
func TestServeInterruptsJobs(t *testing.T) {
	b := newByHand(t)
	b.fill(t, "lying", 100)
	b.fill(t, "orders", 0)
	file := tasksDB(t)
	s := startServe(t, "--db", "sqlite:"+file, "--url", b.url)
	s.until("/readyz", 200)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/v1/requeue", strings.NewReader(`{"queue":"lying","to_queue":"orders","limit":100,"rate":20}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if text, _ := io.ReadAll(got.Body); got.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", got.StatusCode, text)
	}
	for deadline := time.Now().Add(time.Minute); b.ready(t, "orders") < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is sent:\n%s", s.log)
		}
		<-time.After(10 * time.Millisecond)
	}
	if code, _ := s.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(180000)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var state, why string
	var done int
	if err := db.QueryRowContext(t.Context(), "SELECT state, done, error FROM rabbitdelay_audit WHERE action = 'requeue'").Scan(&state, &done, &why); err != nil || state != "interrupted" || done != b.ready(t, "orders") {
		t.Errorf("the job is %s, and did %d of %d: %s, %v", state, done, b.ready(t, "orders"), why, err)
	}
}

// forward makes the server in memory reachable at an address.
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

// Without a database it shows the broker, requeues, and says what is missing.
func TestServeWithoutDatabase(t *testing.T) {
	srv, broker := memoryBroker(t)
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.Background()) }()
	if err := client.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--url", broker)
	s.until("/readyz", 200)
	if code, text := s.get("/api/v1/tasks"); code != 503 || !strings.Contains(text, "no database of tasks") {
		t.Errorf("tasks: %d %s", code, text)
	}
	if code, text := s.get("/api/v1/status"); code != 200 || !strings.Contains(text, `"ready":1`) {
		t.Errorf("status: %d %s", code, text)
	}
	if code, text := s.get("/"); code != 200 || text == "" {
		t.Errorf("the page: %d %s", code, text)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/v1/requeue", strings.NewReader(`{"queue":"orders.dead","dry_run":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if text, _ := io.ReadAll(got.Body); got.StatusCode != http.StatusOK {
		t.Errorf("requeue: %d %s", got.StatusCode, text)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// The probe's address answers probes, and the other then does not.
func TestServeProbe(t *testing.T) {
	file := tasksDB(t)
	_, broker := memoryBroker(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	probe := l.Addr().String()
	_ = l.Close()
	users := filepath.Join(t.TempDir(), "users.yaml")
	if code, out, errs := run(t, "correct horse battery\n", "users", "add", "anna", "--role", "operator", "--users", users); code != 0 || out != "" || strings.Contains(errs, "horse") {
		t.Fatalf("users add: %d %q %q", code, out, errs)
	}
	code, token, _ := run(t, "", "users", "token", "shop", "--role", "viewer", "--users", users)
	if code != 0 || !strings.HasPrefix(token, "rdt_") {
		t.Fatalf("users token: %d %q", code, token)
	}
	text, err := os.ReadFile(users)
	if info, serr := os.Stat(users); err != nil || serr != nil || info.Mode().Perm() != 0o600 || strings.Contains(string(text), strings.TrimSpace(token)) || strings.Contains(string(text), "horse") {
		t.Errorf("the file: %v %v\n%s", err, info, text)
	}
	if code, _, errs := run(t, "short\n", "users", "add", "eve", "--role", "viewer", "--users", users); code != 1 || !strings.Contains(errs, "expected 10 to 72") {
		t.Errorf("a short password: %d %s", code, errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	log := &lockedBuilder{}
	go func() {
		ended <- Run(ctx, []string{"serve", "--db", "sqlite:" + file, "--url", broker, "--listen", "127.0.0.1:0", "--users", users, "--probe", probe, "--path-prefix", "/delays"}, strings.NewReader(""), io.Discard, log)
	}()
	defer func() { cancel(); <-ended }()
	p := &served{t: t, url: "http://" + probe, log: log}
	p.until("/readyz", 200)
	_, rest, _ := strings.Cut(log.String(), `"url": "http://`)
	at, _, _ := strings.Cut(rest, "/delays")
	s := &served{t: t, url: "http://" + at, log: log}
	for path, code := range map[string]int{"/healthz": 401, "/metrics": 401, "/delays/": 401, "/delays/api/v1/counts": 401, "/delays/assets/console.css": 200} {
		if got, text := s.get(path); got != code {
			t.Errorf("%s: %d %.200s", path, got, text)
		}
	}
	if got, text := p.get("/metrics"); got != 200 || !strings.Contains(text, "rabbitdelay_") {
		t.Errorf("metrics: %d %.200s", got, text)
	}
	if got, _ := p.get("/delays/api/v1/counts"); got != 404 {
		t.Errorf("the probe's address answers the API: %d", got)
	}
}

// Who sends a request slowly does not keep others from being answered, and is cut off.
func TestServeCutsOffSlowRequests(t *testing.T) {
	file := tasksDB(t)
	_, broker := memoryBroker(t)
	s := startServe(t, "--db", "sqlite:"+file, "--url", broker)
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
	if code, text := s.get("/api/v1/counts"); code != 200 {
		t.Errorf("beside 200 slow ones: %d %s", code, text)
	}
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(c); err != nil {
			t.Fatalf("a slow request is not cut off: %v", err)
		}
	}
}
