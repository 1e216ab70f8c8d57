package api

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	_ "modernc.org/sqlite" // registers the database driver

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is the API with a database and a broker in memory, without the console's handler in front of it.
type world struct {
	t      *testing.T
	db     *sql.DB
	store  *taskview.Store
	broker *amqptest.Server
	client *amqpx.Client
	mux    *http.ServeMux
	who    service.Identity // the caller of the requests
}

func newWorld(t *testing.T, change ...func(*world, *service.Config)) *world {
	t.Helper()
	w := &world{t: t, broker: amqptest.NewServer(amqptest.Options{}), mux: http.NewServeMux(), who: service.Identity{Name: "anna", Role: service.RoleOperator}}
	t.Cleanup(w.broker.Close)
	var err error
	w.db, err = sql.Open("sqlite", ":memory:")
	check(t, err)
	w.db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = w.db.Close() })
	check(t, schedule.Migrate(t.Context(), w.db))
	w.store, err = taskview.New(w.db, schedule.Config{})
	check(t, err)
	w.client, err = amqpx.Open(t.Context(), amqpx.Config{URL: w.broker.URL(), Dial: w.broker.Dial})
	check(t, err)
	t.Cleanup(func() { _ = w.client.Close(context.Background()) })
	want := w.client.Strategy().Topology()
	want.Destinations = []topology.Destination{{Queue: "orders"}}
	cfg := service.Config{
		Store: w.store, DB: w.db, Keep: time.Hour, Discarded: t.TempDir(),
		Client: func() (*amqpx.Client, error) { return w.client, nil },
		Broker: func(context.Context) (status.Source, error) {
			return status.Source{
				Want:   doctor.Config{Want: want.WithDestinationQueues(topology.DefaultPrefix, topology.Quorum), Prefix: topology.DefaultPrefix},
				Broker: snapshot.Source{Dial: w.dial, SkipClock: true},
			}, nil
		},
		Previous: func(context.Context) (topology.Topology, error) { return topology.Topology{}, nil },
	}
	for _, c := range change {
		c(w, &cfg)
	}
	core := service.New(cfg)
	t.Cleanup(func() { _ = core.Close(context.Background()) })
	Register(w.mux, core, "", "test", zap.NewNop())
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

// job returns the id of the job that was started, or an empty string if there is none.
func (r reply) job(t testing.TB) string {
	t.Helper()
	if r.code != http.StatusOK || len(r.text) == 0 {
		return ""
	}
	j, _ := r.json(t)["job"].(map[string]any)
	id, _ := j["id"].(string)
	return id
}

func (w *world) request(ctx context.Context, method, path, body string) *http.Request {
	ctx = service.WithCaller(ctx, service.Caller{Identity: w.who})
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// ask makes a request.
func (w *world) ask(method, path, body string) reply {
	w.t.Helper()
	got := httptest.NewRecorder()
	w.mux.ServeHTTP(got, w.request(w.t.Context(), method, path, body))
	return reply{got.Code, got.Header(), bytes.TrimSpace(got.Body.Bytes())}
}

// must calls ask and ends the test unless the response has the given code.
func (w *world) must(code int, method, path, body string) map[string]any {
	w.t.Helper()
	r := w.ask(method, path, body)
	if r.code != code {
		w.t.Fatalf("%s %s: got %d, want %d: %s", method, path, r.code, code, r.text)
	}
	return r.json(w.t)
}

// finished waits for a job in a synctest bubble.
func (w *world) finished(id string) {
	w.t.Helper()
	<-time.After(10 * time.Minute)
	synctest.Wait()
	if j := w.must(200, "GET", "/api/v1/jobs/"+id, ""); j["state"] == "running" {
		w.t.Errorf("the job is still running after 10 minutes: %v", j)
	}
}

// lay inserts a failed task, and adds two messages to the dead-letter queue, in a synctest bubble.
func (w *world) lay() {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, last_error) "+
		"VALUES ('failed', 'orders', 1767225600000, 'failed', 1767225600000, 'card expired')")
	check(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.client.Consume(ctx, "orders", func(context.Context, *amqpx.Delivery) error { return amqpx.Reject(errors.New("card stolen")) })
	}()
	for _, id := range []string{"dead-1", "dead-2"} {
		m := amqpx.Message{ID: id, Queue: "orders", Body: []byte("secret body"), Headers: map[string]any{"api-key": "secret key"}}
		check(w.t, w.client.Send(w.t.Context(), m))
	}
	<-time.After(time.Minute)
	cancel()
	check(w.t, <-done)
	q, _ := w.broker.Queue("orders.dead")
	if q.Ready != 2 {
		w.t.Fatalf("got %d dead letters, want 2", q.Ready)
	}
}

// firstEvent is a ResponseWriter that keeps the written data until the first event of a stream is complete.
type firstEvent struct {
	header http.Header
	code   int
	text   bytes.Buffer
	end    context.CancelFunc
}

func (e *firstEvent) Header() http.Header            { return e.header }
func (e *firstEvent) WriteHeader(code int)           { e.code = code }
func (*firstEvent) Flush()                           {}
func (*firstEvent) SetReadDeadline(time.Time) error  { return nil }
func (*firstEvent) SetWriteDeadline(time.Time) error { return nil }

func (e *firstEvent) Write(p []byte) (int, error) {
	e.text.Write(p)
	if strings.Contains(e.text.String(), "\n\n") {
		e.end()
	}
	return len(p), nil
}

// watch reads the first event and checks it against the OpenAPI document.
func (w *world) watch(d *document) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	got := &firstEvent{header: http.Header{}, code: http.StatusOK, end: cancel}
	w.mux.ServeHTTP(got, w.request(ctx, http.MethodGet, "/api/v1/events", ""))
	if kind := got.header.Get("Content-Type"); kind != "text/event-stream" {
		w.t.Errorf(`events have the content type %s, want "text/event-stream"`, kind)
	}
	event := map[string]any{}
	first, _, _ := strings.Cut(got.text.String(), "\n\n")
	for line := range strings.Lines(first) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		event[name] = value
		if name == "data" {
			var data any
			check(w.t, json.Unmarshal([]byte(value), &data))
			event[name] = data
		}
	}
	text, err := json.Marshal([]any{event})
	check(w.t, err)
	d.conforms("GET /api/v1/events", reply{got.code, got.header, text})
}

// dial opens a connection for peeking at queues.
func (w *world) dial(ctx context.Context) (*amqp.Connection, error) {
	return inspect.Dial(ctx, amqpx.Config{URL: w.broker.URL(), Dial: w.broker.Dial})
}
