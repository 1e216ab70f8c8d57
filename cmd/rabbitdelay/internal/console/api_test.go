package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// call is a request for an operation of the API.
type call struct{ op, method, path string }

// calls returns requests for every operation in the API's document, with objects that exist if
// possible: task a, message dead-1, recurring task nightly and queue orders.dead.
func (w *world) calls(who ...func(*http.Request)) (list []call) {
	w.t.Helper()
	paths := w.must(200, "GET", "/api/openapi.json", "", who...)["paths"].(map[string]any)
	for path, item := range paths {
		id := "a"
		if strings.Contains(path, "/trace/") {
			id = "dead-1"
		}
		at := strings.NewReplacer("{id}", id, "{name}", "nightly", "{queue}", "orders.dead").Replace(path)
		for method := range item.(map[string]any) {
			method = strings.ToUpper(method)
			list = append(list, call{method + " " + path, method, at})
		}
	}
	slices.SortFunc(list, func(a, b call) int { return strings.Compare(a.op, b.op) })
	if len(list) < 40 {
		w.t.Fatalf("the API's document has %d operations, want at least 40", len(list))
	}
	return list
}

// lay adds a failed task to the table, and two messages to the dead-letter queue.
func (w *world) lay() {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(),
		"INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, last_error) "+
			"VALUES ('failed', 'orders', 1767225600000, 'failed', 1767225600000, 'card expired')")
	check(w.t, err)
	client, err := w.cfg.Client()
	check(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	handled := make(chan struct{}, 2)
	go func() {
		done <- client.Consume(ctx, "orders", func(context.Context, *amqpx.Delivery) error {
			handled <- struct{}{}
			return amqpx.Reject(errors.New("card stolen"))
		})
	}()
	for _, id := range []string{"dead-1", "dead-2"} {
		check(w.t, client.Send(w.t.Context(), amqpx.Message{ID: id, Queue: "orders", Body: []byte("secret body"), Headers: map[string]any{"api-key": "secret key"}}))
		<-handled
	}
	for deadline := time.Now().Add(3 * time.Minute); ; {
		info, err := client.QueueInfo(w.t.Context(), "orders.dead")
		if err == nil && info.Ready == 2 {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the dead-letter queue: got %v (error %v), want 2 messages", info, err)
		}
		<-time.After(5 * time.Millisecond)
	}
	cancel()
	check(w.t, <-done)
}

// A path that is not an operation is reported as a problem in JSON, like any other error.
func TestAPIUnknownOperation(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path string
		code         int
		detail       string
	}{
		{"GET", "/api/v1/nothing", 404, "no such operation; /api/openapi.json lists them"},
		{"POST", "/api", 404, "no such operation; /api/openapi.json lists them"},
		{"DELETE", "/api/v1/tasks/a", 405, "the method DELETE is not allowed for this path; expected GET, HEAD, PUT; /api/openapi.json lists the operations"},
	} {
		r := w.ask(c.method, c.path, "")
		var problem struct {
			Status int
			Detail string
		}
		check(t, json.Unmarshal(r.text, &problem))
		if r.code != c.code || problem.Status != c.code || problem.Detail != c.detail || r.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: got %d %s, want %d, Status = %v, Detail = %v and the content type application/problem+json",
				c.method, c.path, r.code, r.text, c.code, c.code, c.detail)
		}
	}
}

// A task can be read and cancelled by its id, whatever characters the id contains.
func TestAPITakesAnyID(t *testing.T) {
	w := newWorld(t)
	for id, path := range map[string]string{
		"a/b":           "a%2Fb",
		"../etc/passwd": "..%2Fetc%2Fpasswd",
		"..":            "%2E%2E",
		"Grüße, 世界":     "Gr%C3%BC%C3%9Fe,%20%E4%B8%96%E7%95%8C",
		"a b?c#d%2F":    "a%20b%3Fc%23d%252F",
		"cancel":        "cancel",
		"x;y=1&z":       "x;y=1&z",
	} {
		w.must(201, "PUT", "/api/v1/tasks/"+path, `{"queue":"q","due":"1h"}`)
		if got := w.must(200, "GET", "/api/v1/tasks/"+path, "")["task"].(map[string]any)["id"]; got != id {
			t.Errorf("the task at %s has the id %v, want %s", path, got, id)
		}
		w.must(200, "POST", "/api/v1/tasks/"+path+"/cancel", "")
		if task, err := w.store.Get(t.Context(), schedule.NoTx, id); err != nil || task.Status != schedule.StatusCancelled {
			t.Errorf("task %s after cancel: got status %v (error %v), want schedule.StatusCancelled", id, task.Status, err)
		}
	}
}
