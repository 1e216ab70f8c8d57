package console

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // registers the database driver

	"golang.org/x/crypto/bcrypt"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/auth"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestMain(m *testing.M) {
	auth.Cost = bcrypt.MinCost
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a console with a database and a broker in memory. Tests can run it in the virtual time of testing/synctest.
type world struct {
	t      testing.TB
	db     *sql.DB
	store  *taskview.Store
	broker *amqptest.Server
	cfg    Config
	c      *Console
	server *httptest.Server
	client *http.Client // of server
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, broker: amqptest.NewServer(amqptest.Options{})}
	t.Cleanup(w.broker.Close)
	var err error
	w.db, err = sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "tasks.db")+
		"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	check(t, err)
	t.Cleanup(func() { _ = w.db.Close() })
	check(t, schedule.Migrate(t.Context(), w.db))
	w.store, err = taskview.New(w.db, schedule.Config{})
	check(t, err)
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: w.broker.URL(), Dial: w.broker.Dial})
	check(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	want := client.Strategy().Topology()
	want.Destinations = []topology.Destination{{Queue: "orders"}}
	w.cfg = Config{
		Store: w.store, DB: w.db, Version: "test", Discarded: filepath.Join(t.TempDir(), "discarded"),
		Client: func() (*amqpx.Client, error) { return client, nil },
		Broker: func(context.Context) (status.Source, error) {
			return status.Source{
				Want:   doctor.Config{Want: want.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum), Prefix: topology.DefaultPrefix},
				Broker: snapshot.Source{Dial: w.dial, SkipClock: true},
			}, nil
		},
		Previous: func(context.Context) (topology.Topology, error) { return topology.Topology{}, nil },
	}
	for _, c := range change {
		c(&w.cfg)
	}
	w.c, err = New(w.cfg)
	check(t, err)
	t.Cleanup(func() { _ = w.c.Close(context.Background()) })
	w.server, w.client = serveInMemory(w.c)
	t.Cleanup(w.server.Close)
	return w
}

// reply is a response.
type reply struct {
	code   int
	header http.Header
	text   []byte
}

func (r reply) json(t testing.TB) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(r.text, &out); err != nil {
		t.Fatalf("the answer is not JSON: %v: %s", err, r.text)
	}
	return out
}

// ask makes a request. A body is JSON unless a header says otherwise.
func (w *world) ask(method, path, body string, change ...func(*http.Request)) reply {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, w.server.URL+path, strings.NewReader(body))
	check(w.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, c := range change {
		c(r)
	}
	got, err := w.client.Do(r)
	check(w.t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, 8<<20))
	check(w.t, err)
	return reply{got.StatusCode, got.Header, bytes.TrimSpace(text)}
}

// must calls ask and ends the test unless the response has the given code.
func (w *world) must(code int, method, path, body string, change ...func(*http.Request)) map[string]any {
	w.t.Helper()
	r := w.ask(method, path, body, change...)
	if r.code != code {
		w.t.Fatalf("%s %s: got %d, want %d: %s", method, path, r.code, code, r.text)
	}
	if len(r.text) == 0 || r.text[0] != '{' {
		return nil
	}
	return r.json(w.t)
}

// finished waits until a job is no longer running, and returns it.
func (w *world) finished(job any) map[string]any {
	w.t.Helper()
	id := job.(map[string]any)["id"].(string)
	for deadline := time.Now().Add(5 * time.Minute); ; {
		j := w.must(200, "GET", "/api/v1/jobs/"+id, "")
		if j["state"] != "running" {
			return j
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the job is still running at the deadline: %v", j)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// dial opens a connection for peeking at queues.
func (w *world) dial(ctx context.Context) (*amqp.Connection, error) {
	return inspect.Dial(ctx, amqpx.Config{URL: w.broker.URL(), Dial: w.broker.Dial})
}
