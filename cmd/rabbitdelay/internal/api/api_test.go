package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// document is the OpenAPI document that the API serves.
type document struct {
	t        testing.TB
	doc      map[string]any
	compiler *jsonschema.Compiler
	seen     map[string]map[string]bool // operation -> codes that were validated
}

func openDocument(w *world) *document {
	d := &document{t: w.t, doc: w.must(200, "GET", "/api/openapi.json", ""), seen: map[string]map[string]bool{}}
	d.compiler = jsonschema.NewCompiler()
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	check(w.t, d.compiler.AddResource("mem:///openapi.json", d.doc))
	if d.doc["openapi"] != "3.1.0" {
		w.t.Errorf(`the document's openapi is %v, want "3.1.0"`, d.doc["openapi"])
	}
	return d
}

// operations returns all operations in the form "METHOD /path".
func (d *document) operations() []string {
	var out []string
	for path, item := range d.doc["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			out = append(out, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(out)
	return out
}

// conforms validates a response against its operation.
func (d *document) conforms(operation string, r reply) {
	d.t.Helper()
	method, path, _ := strings.Cut(operation, " ")
	item, ok := d.doc["paths"].(map[string]any)[path].(map[string]any)
	op, ok2 := item[strings.ToLower(method)].(map[string]any)
	if !ok || !ok2 {
		d.t.Fatalf("the document does not contain the operation %s, want it described", operation)
	}
	code := strconv.Itoa(r.code)
	content, ok := op["responses"].(map[string]any)[code].(map[string]any)
	if !ok {
		d.t.Fatalf("%s: got code %s, want one that is in the document: %s", operation, code, r.text)
	}
	if d.seen[operation] == nil {
		d.seen[operation] = map[string]bool{}
	}
	d.seen[operation][code] = true
	media, _, _ := strings.Cut(r.header.Get("Content-Type"), ";")
	types, _ := content["content"].(map[string]any)
	if len(types) == 0 {
		if len(r.text) > 0 {
			d.t.Errorf("%s: got code %s with the body %s, want no body", operation, code, r.text)
		}
		return
	}
	if types[media] == nil {
		d.t.Fatalf("%s: got code %s with the content type %s, want one of %v", operation, code, media, slices.Sorted(maps.Keys(types)))
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	at := fmt.Sprintf("mem:///openapi.json#/paths/%s/%s/responses/%s/content/%s/schema", escape.Replace(path), strings.ToLower(method),
		code, escape.Replace(media))
	schema, err := d.compiler.Compile(at)
	if err != nil {
		d.t.Fatalf("%s: compiling the schema: %v", operation, err)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(r.text)))
	check(d.t, err)
	if err := schema.Validate(v); err != nil {
		d.t.Errorf("%s: the response with code %s does not match the schema: %v\n%s", operation, code, err, r.text)
	}
}

// call is a request for an operation.
type call struct {
	op   string
	path string // the path without /api/v1, if it differs from the path of op
	body string
	code int
}

func (c call) request() (method, path string) {
	method, path, _ = strings.Cut(c.op, " ")
	if c.path != "" {
		path = "/api/v1" + c.path
	}
	return method, path
}

const everything = `{"queue":"orders","due":"2h","body":"hello","content_type":"text/plain","type":"t","correlation_id":"c","priority":3,"expires_after":"1d","headers":{"tenant":"blue"},"tags":["vip"]}`

// calls returns requests for every operation. Each of them finds the objects that earlier requests have created.
func calls() []call {
	const v1 = " /api/v1"
	return []call{
		{"PUT" + v1 + "/tasks/{id}", "/tasks/a", everything, 201},
		{"PUT" + v1 + "/tasks/{id}", "/tasks/a", everything, 200},
		{"PUT" + v1 + "/tasks/{id}", "/tasks/a", `{"queue":"orders","due":"2h","body":"other"}`, 409},
		{"PUT" + v1 + "/tasks/{id}", "/tasks/a?replace=true", `{"queue":"orders","due":"2026-12-24T08:00:00Z","body_base64":"/w=="}`, 201},
		{"PUT" + v1 + "/tasks/{id}", "/tasks/b", `{"due":"soon","queue":"q"}`, 422},
		{"POST" + v1 + "/tasks", "",
			`{"tasks":[{"id":"b","queue":"orders","due":"3h"},{"id":"c","exchange":"x","routing_key":"k","due":"now"},{"id":"a","queue":"other","due":"1h"},{"id":"bad ","queue":"q","due":"1h"}]}`,
			200},
		{"POST" + v1 + "/tasks", "", `{"tasks":[]}`, 422},
		{"GET" + v1 + "/tasks", "/tasks?limit=2&status=pending&queue=orders", "", 200},
		{"GET" + v1 + "/tasks", "/tasks?cursor=nonsense", "", 422},
		{"GET" + v1 + "/tasks/{id}", "/tasks/a", "", 200},
		{"GET" + v1 + "/tasks/{id}", "/tasks/none", "", 404},
		{"POST" + v1 + "/tasks/{id}/reschedule", "/tasks/a/reschedule", `{"by":"-1h"}`, 200},
		{"POST" + v1 + "/tasks/{id}/reschedule", "/tasks/a/reschedule", `{"to":"tomorrow 08:00 Europe/Berlin"}`, 200},
		{"POST" + v1 + "/tasks/{id}/reschedule", "/tasks/a/reschedule", `{}`, 422},
		{"POST" + v1 + "/tasks/{id}/run", "/tasks/a/run", "", 200},
		{"POST" + v1 + "/tasks/{id}/cancel", "/tasks/a/cancel", "", 200},
		{"POST" + v1 + "/tasks/{id}/cancel", "/tasks/a/cancel", "", 409},
		{"POST" + v1 + "/tasks/{id}/revive", "/tasks/failed/revive", `{"due":"1h"}`, 200},
		{"POST" + v1 + "/tasks/bulk", "", `{"action":"reschedule-by","by":"1h","filter":{"queue":"orders"},"dry_run":true}`, 200},
		{"POST" + v1 + "/tasks/bulk", "", `{"action":"reschedule-by","by":"1h","filter":{"queue":"orders"},"count":10}`, 200},
		{"POST" + v1 + "/tasks/bulk", "", `{"action":"reschedule-by","by":"1h","ids":["a"],"dry_run":true}`, 200},
		{"POST" + v1 + "/tasks/bulk", "", `{"action":"cancel","filter":{}}`, 422},
		{"POST" + v1 + "/tasks/bulk", "", `{"action":"cancel","filter":{"queue":"orders"}}`, 422},
		{"GET" + v1 + "/counts", "/counts?status=pending&due_from=-1d&due_to=7d", "", 200},
		{"GET" + v1 + "/task-errors", "/task-errors?queue=mail&order=most&sample=10", "", 200},
		{"GET" + v1 + "/histogram", "", "", 200},
		{"GET" + v1 + "/histogram", "/histogram?from=now&to=1d&bins=24", "", 200},
		{"GET" + v1 + "/histogram", "/histogram?from=now", "", 422},
		{"POST" + v1 + "/destinations/pause", "", `{"queue":"mail"}`, 200},
		{"POST" + v1 + "/destinations/pause", "", `{}`, 422},
		{"POST" + v1 + "/destinations/rate-limit", "", `{"queue":"mail","per_second":50}`, 200},
		{"POST" + v1 + "/destinations/rate-limit", "", `{"queue":"mail"}`, 422},
		{"POST" + v1 + "/destinations/rate-limit", "", `{"queue":"mail","per_second":0.0000001}`, 422},
		{"GET" + v1 + "/destinations", "", "", 200},
		{"POST" + v1 + "/destinations/resume", "", `{"queue":"mail","spread":"30m"}`, 200},
		{"POST" + v1 + "/destinations/resume", "", `{"exchange":"e","spread":"soon"}`, 422},
		{"PUT" + v1 + "/recurring/{name}", "/recurring/nightly",
			`{"cron":"30 2 * * *","time_zone":"Europe/Berlin","queue":"orders","body":"x","jitter":"5m","tags":["a"]}`, 200},
		{"PUT" + v1 + "/recurring/{name}", "/recurring/nightly", `{"cron":"not","queue":"orders"}`, 422},
		{"GET" + v1 + "/recurring", "", "", 200},
		{"GET" + v1 + "/recurring/{name}", "/recurring/nightly", "", 200},
		{"GET" + v1 + "/recurring/{name}", "/recurring/none", "", 404},
		{"POST" + v1 + "/recurring/{name}/pause", "/recurring/nightly/pause", "", 200},
		{"POST" + v1 + "/recurring/{name}/resume", "/recurring/nightly/resume", "", 200},
		{"POST" + v1 + "/recurring/{name}/run", "/recurring/nightly/run", "", 200},
		{"DELETE" + v1 + "/recurring/{name}", "/recurring/nightly", "", 204},
		{"GET" + v1 + "/overview", "", "", 200},
		{"GET" + v1 + "/history", "/history?over=week", "", 200},
		{"GET" + v1 + "/history", "/history?over=year", "", 422},
		{"GET" + v1 + "/status", "", "", 200},
		{"GET" + v1 + "/doctor", "", "", 200},
		{"GET" + v1 + "/events", "", "", 200},
		{"GET" + v1 + "/layouts/retire", "", "", 503},
		{"POST" + v1 + "/layouts/retire", "", "", 503},
		{"GET" + v1 + "/queues/{queue}/messages", "/queues/orders.dead/messages?limit=5", "", 200},
		{"GET" + v1 + "/queues/{queue}/errors", "/queues/orders.dead/errors?order=most&limit=5", "", 200},
		{"GET" + v1 + "/queues/{queue}/errors", "/queues/orders.dead/errors?order=worst", "", 422},
		{"POST" + v1 + "/requeue", "", `{"queue":"orders.dead","dry_run":true,"error_like":"order # was not found"}`, 200},
		{"POST" + v1 + "/requeue", "", `{"queue":"orders.dead","limit":1,"reasons":["rejected"]}`, 200},
		{"POST" + v1 + "/requeue", "", `{"queue":"orders.dead"}`, 422},
		{"POST" + v1 + "/discard", "", `{"queue":"orders.dead","dry_run":true,"error_like":"order # was not found"}`, 200},
		{"POST" + v1 + "/discard", "", `{"queue":"orders.dead"}`, 422},
		{"POST" + v1 + "/discard", "", `{"queue":"orders.dead","to_queue":"x","limit":1}`, 422},
		{"GET" + v1 + "/trace/{id}", "/trace/dead-1", "", 200},
		{"GET" + v1 + "/jobs", "", "", 200},
		{"GET" + v1 + "/jobs/{id}", "/jobs/none", "", 404},
		{"GET" + v1 + "/jobs/{id}", "/jobs/JOB", "", 200},
		{"GET" + v1 + "/jobs/{id}/messages", "/jobs/JOB/messages", "", 404},
		{"POST" + v1 + "/jobs/{id}/stop", "/jobs/JOB/stop", "", 409},
		{"POST" + v1 + "/jobs/{id}/continue", "/jobs/JOB/continue", "", 409},
		{"GET" + v1 + "/audit", "/audit?limit=3&target=a", "", 200},
	}
}

// Every operation is called, and every response conforms to the document.
func TestConformsToItsDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := openDocument(w)
		w.lay()
		job := ""
		for _, c := range calls() {
			method, path := c.request()
			path = strings.Replace(path, "JOB", job, 1)
			if c.op == "GET /api/v1/events" {
				w.watch(d)
				continue
			}
			r := w.ask(method, path, c.body)
			if r.code != c.code {
				t.Errorf("%s %s: got %d, want %d: %s", method, path, r.code, c.code, r.text)
				continue
			}
			d.conforms(c.op, r)
			if id := r.job(t); id != "" {
				job = id
				w.finished(id)
			}
		}
		for _, op := range d.operations() {
			if d.seen[op] == nil {
				t.Errorf("operation %s was not called, want every operation in calls", op)
			}
		}
		if text := w.ask("GET", "/api/openapi.yaml", ""); text.code != 200 || !strings.Contains(string(text.text), "openapi: 3.1.0") {
			t.Errorf(`openapi.yaml: got %d %.100s, want 200 and "openapi: 3.1.0" in it`, text.code, text.text)
		}
	})
}

// Responses match the document, including where it allows null, even if there is little to return: with empty tables,
// without a database, without a broker, or if one of them does not answer.
func TestConformsWithLittle(t *testing.T) {
	for name, change := range map[string]func(w *world, c *service.Config){
		"empty":       func(*world, *service.Config) {},
		"no database": func(_ *world, c *service.Config) { c.Store, c.DB = nil, nil },
		"no broker":   func(_ *world, c *service.Config) { c.Client, c.Broker, c.Previous = nil, nil, nil },
		"nothing":     func(_ *world, c *service.Config) { *c = service.Config{} },
		"database gone": func(w *world, _ *service.Config) {
			check(w.t, w.db.Close())
		},
		"broker gone": func(w *world, _ *service.Config) { w.broker.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, change)
			d := openDocument(w)
			for _, op := range d.operations() {
				if method, path, _ := strings.Cut(op, " "); method == http.MethodGet && path != "/api/v1/events" {
					path = strings.NewReplacer("{id}", "none", "{name}", "none", "{queue}", "none").Replace(path)
					d.conforms(op, w.ask(method, path, ""))
				}
			}
			for op, bodies := range map[string][]string{
				"PUT /api/v1/tasks/{id}":       {`{"queue":"orders","due":"1h","tags":null,"headers":null,"body":null}`, `{"queue":"orders","due":null}`},
				"POST /api/v1/tasks":           {`{"tasks":null}`, `{"tasks":[null]}`},
				"POST /api/v1/tasks/bulk":      {`{"action":"cancel","filter":null,"dry_run":true}`, `{"action":"cancel","filter":{"queue":"x"},"dry_run":true}`},
				"PUT /api/v1/recurring/{name}": {`{"every":"1h","queue":"orders","tags":null}`},
				"POST /api/v1/requeue":         {`{"queue":"orders.dead","reasons":null,"dry_run":true}`, `{"queue":"none.dead","dry_run":true}`},
			} {
				method, path, _ := strings.Cut(op, " ")
				if name == "broker gone" && path == "/api/v1/requeue" {
					continue // it waits for the broker for 30 s
				}
				for _, body := range bodies {
					d.conforms(op, w.ask(method, strings.NewReplacer("{id}", "x", "{name}", "x").Replace(path), body))
				}
			}
		})
	}
}

// If a field is invalid, the error contains its location.
func TestNamesTheField(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ method, path, body, location string }{
		{"PUT", "/tasks/a", `{"queue":"q","due":"soon"}`, "body.due"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","priority":300}`, "body.priority"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","colour":"red"}`, "body.colour"},
		{"PUT", "/tasks/a", `{"queue":"q"}`, "body"},
		{"PUT", "/tasks/a", `{"queue":"q","exchange":"x","due":"1h"}`, "body.queue"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","body":"x","body_base64":"eA=="}`, "body.body_base64"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","body_base64":"?"}`, "body.body_base64"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","expires_after":"never"}`, "body.expires_after"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","headers":{"a":null}}`, "body.headers.a"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","tags":[null]}`, "body.tags[0]"},
		{"PUT", "/tasks/a?overwrite=1", `{"queue":"q","due":"1h"}`, "query.overwrite"},
		{"POST", "/tasks", `{"tasks":[{"id":"a","queue":"q","due":"1h"},{"id":"b","queue":"q","due":"?"}]}`, "body.tasks[1].due"},
		{"POST", "/tasks", `{"tasks":[{"id":"a","queue":"q","due":"1h"},{"id":"b","queue":"q","due":"1h","body_base64":"?"}]}`, "body.tasks[1].body_base64"},
		{"POST", "/tasks/a/reschedule", `{"by":"2 days"}`, "body.by"},
		{"GET", "/tasks?due_from=2h&due_to=1h", "", "query.due_to"},
		{"GET", "/tasks?status=odd", "", "query.status"},
		{"GET", "/tasks?queue=a&queue=b", "", "query.queue"},
		{"GET", "/tasks?limit=1001", "", "query.limit"},
		{"GET", "/tasks?header=x", "", "query.header"},
		{"POST", "/tasks/bulk", `{"action":"reschedule-by","filter":{"tag":"x"},"count":1}`, "body.by"},
		{"POST", "/tasks/bulk", `{"action":"reschedule","filter":{"tag":"x"},"count":1}`, "body.to"},
		{"POST", "/tasks/bulk", `{"action":"cancel","to":"1h","filter":{"tag":"x"},"count":1}`, "body.to"},
		{"POST", "/tasks/bulk", `{"action":"explode","filter":{"tag":"x"},"count":1}`, "body.action"},
		{"POST", "/tasks/bulk", `{"action":"cancel","filter":{"tag":"x"},"count":0}`, "body.count"},
		{"GET", "/histogram?from=1h", "", "query.from"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","unique":{"key":"k","on_conflict":"push-back"}}`, "body.unique.max_wait"},
		{"PUT", "/tasks/a", `{"queue":"q","due":"1h","unique":{"key":"k","cooldown":"30d"}}`, "body.unique.cooldown"},
		{"POST", "/tasks/bulk", `{"action":"reschedule-by","by":"1h","spread":"1h","filter":{"tag":"x"},"count":1}`, "body.spread"},
		{"POST", "/tasks/bulk", `{"action":"cancel","filter":{"status":"done"},"count":1}`, "body.filter.status"},
		{"POST", "/destinations/resume", `{"queue":"q","spread":"31d"}`, "body.spread"},
		{"POST", "/requeue", `{"queue":"delay.bucket.1s","dry_run":true}`, "body.queue"},
		{"POST", "/requeue", `{"queue":"q.dead","to_queue":"q.dead","dry_run":true}`, "body.to_queue"},
		{"POST", "/requeue", `{"queue":"q.dead","to_queue":"delay.parked","dry_run":true}`, "body.to_queue"},
		{"PUT", "/recurring/a", `{"cron":"x","queue":"q"}`, "body.cron"},
	} {
		r := w.ask(c.method, "/api/v1"+c.path, c.body)
		if r.code != http.StatusUnprocessableEntity {
			t.Errorf("%s %s %s: got %d, want 422", c.method, c.path, c.body, r.code)
		}
		if kind := r.header.Get("Content-Type"); kind != "application/problem+json" {
			t.Errorf(`%s %s %s: got the content type %s, want "application/problem+json"`, c.method, c.path, c.body, kind)
		}
		if !strings.Contains(string(r.text), `"location":"`+c.location+`"`) {
			t.Errorf("%s %s %s: got %s, want the location %s in it", c.method, c.path, c.body, r.text, c.location)
		}
	}
}

// The details of problems are complete sentences.
func TestDetails(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"POST", "/tasks/bulk", `{"action":"cancel","filter":{"queue":"q","tag":null},"dry_run":true}`, 422, "filter.tag is empty, perhaps because of an unset variable"},
		{"POST", "/tasks/bulk", `{"action":"cancel","filter":{"queue":"","tag":"x"},"dry_run":true}`, 422, "filter.queue is empty, perhaps because of an unset variable"},
		{"POST", "/tasks/bulk", `{"action":"cancel"}`, 422, `"detail":"an empty filter would select all tasks; add a condition, or set all to true to select all tasks"`},
		{"POST", "/tasks/bulk", `{"action":"cancel","by":"1h","all":true,"count":1}`, 422, `"detail":"by is only for reschedule-by; omit it"`},
		{"POST", "/tasks/bulk", `{"action":"cancel","all":true}`, 422,
			`"detail":"count is 0; expected the number of tasks that a dry run has counted, which must be at least 1"`},
		{"POST", "/tasks/bulk", `{"action":"cancel","filter":{"status":"done"},"count":1}`, 422, `"detail":"status is \"done\"; it must be pending, or none"`},
		{"PUT", "/tasks/a", `{"due":"1h"}`, 422, `"detail":"queue: no destination`},
		{"GET", "/tasks?foo=1", "", 422, `"location":"query.foo","value":"1"`},
		{"GET", "/queues/nope/messages", "", 404, `"detail":"there is no such queue"`},
		{"GET", "/queues/delay.bucket.1s/messages", "", 409, `"detail":"the queue was not examined: delay.bucket.1s: it belongs to the delay strategies`},
		{"GET", "/queues/delay.bucket.1s/errors", "", 409, `"detail":"the queue was not examined: delay.bucket.1s: it belongs to the delay strategies`},
	} {
		if r := w.ask(c.method, "/api/v1"+c.path, c.body); r.code != c.code || !strings.Contains(string(r.text), c.text) {
			t.Errorf("%s %s %s: got %d %s, want %d and %s in it", c.method, c.path, c.body, r.code, r.text, c.code, c.text)
		}
	}
}

// Ten concurrent requests to reschedule a task by an hour add up to ten hours.
func TestMovesAddUp(t *testing.T) {
	w := newWorld(t)
	w.must(201, "PUT", "/api/v1/tasks/a", `{"queue":"q","due":"2030-01-01T00:00:00Z"}`)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if r := w.ask("POST", "/api/v1/tasks/a/reschedule", `{"by":"1h"}`); r.code != 200 {
				t.Errorf("got %d %s, want 200", r.code, r.text)
			}
		})
	}
	all.Wait()
	task, err := w.store.Get(t.Context(), schedule.NoTx, "a")
	check(t, err)
	if want := time.Date(2030, 1, 1, 10, 0, 0, 0, time.UTC); !task.DeliverAt.Equal(want) {
		t.Errorf("got the due time %s, want %s", task.DeliverAt, want)
	}
}

// With replace=true, a repeated PUT schedules a finished task again, and reschedules a pending one if its due time is
// relative. Without replace, or with an absolute due time, a repeated PUT leaves the existing task unchanged.
func TestReplaces(t *testing.T) {
	const relative, absolute = `{"queue":"q","due":"2h"}`, `{"queue":"q","due":"2030-01-01T00:00:00Z"}`
	w := newWorld(t)
	for i, tt := range []struct {
		body, ended string
		replace     bool
		code        int
	}{
		{relative, "", false, 200},
		{relative, "", true, 201},
		{absolute, "", true, 200},
		{absolute, "cancelled", false, 200},
		{absolute, "cancelled", true, 201},
		{absolute, "done", true, 201},
		{absolute, "failed", true, 201},
		{relative, "expired", true, 201},
	} {
		id := fmt.Sprint(i)
		w.must(201, "PUT", "/api/v1/tasks/"+id, tt.body)
		before, err := w.store.Get(t.Context(), schedule.NoTx, id)
		check(t, err)
		if tt.ended != "" {
			_, err := w.db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = ?, finished_at = 1 WHERE id = ?", tt.ended, id)
			check(t, err)
		}
		w.must(tt.code, "PUT", fmt.Sprintf("/api/v1/tasks/%s?replace=%t", id, tt.replace), tt.body)
		task, err := w.store.Get(t.Context(), schedule.NoTx, id)
		check(t, err)
		if renewed := tt.code == 201; renewed != (task.Version > before.Version) {
			t.Errorf("%+v: got version %d after version %d, want a new version: %t", tt, task.Version, before.Version, renewed)
		}
		if pending := tt.code == 201 || tt.ended == ""; pending != (task.Status == schedule.StatusPending) {
			t.Errorf("%+v: the task is %s, want it pending: %t", tt, task.Status, pending)
		}
	}
}

// The cursor of a page leads to the next page, and a body that is too long is refused.
func TestBounds(t *testing.T) {
	w := newWorld(t)
	var list []string
	for i := range 25 {
		list = append(list, fmt.Sprintf(`{"id":"t%02d","queue":"q","due":"2030-01-01T00:00:00Z"}`, i))
	}
	out := w.must(200, "POST", "/api/v1/tasks", `{"tasks":[`+strings.Join(list, ",")+`]}`)
	if out["created"] != 25.0 || out["failed"] != 0.0 {
		t.Errorf(`batch: got %v, want created = 25.0 and failed = 0.0`, out)
	}
	var got []string
	for cursor := ""; ; {
		page := w.must(200, "GET", "/api/v1/tasks?limit=10&cursor="+strings.ReplaceAll(cursor, "/", "%2F"), "")
		for _, x := range page["tasks"].([]any) {
			got = append(got, x.(map[string]any)["id"].(string))
		}
		if page["next"] == nil {
			break
		}
		cursor = page["next"].(string)
	}
	if len(got) != 25 || !slices.IsSorted(got) {
		t.Errorf("pages: got %v, want 25 sorted ids", got)
	}
	long := strings.Repeat("x", 2<<20)
	if r := w.ask("PUT", "/api/v1/tasks/long", `{"queue":"q","due":"1h","body":"`+long+`"}`); r.code != 422 || !strings.Contains(string(r.text), "body.body") {
		t.Errorf("a body of 2 MiB: got %d %.200s, want 422 and the location body.body", r.code, r.text)
	}
	if r := w.ask("POST", "/api/v1/tasks/x/reschedule", `{"to":"`+long[:100<<10]+`"}`); r.code != 413 {
		t.Errorf("a due time of 100 KiB: got %d %.200s, want 413", r.code, r.text)
	}
}

// The response contains the id of the task that has the unique key, and the outcome of the request.
func TestUniqueKeys(t *testing.T) {
	w := newWorld(t)
	due := time.Hour
	put := func(id, unique string) string {
		t.Helper()
		due += time.Minute // a task is pushed back only to a later due time
		r := w.ask("PUT", "/api/v1/tasks/"+id, fmt.Sprintf(`{"queue":"orders","due":%q,"unique":%s}`, due, unique))
		var s struct {
			ID, Outcome string
			Created     bool
		}
		_ = json.Unmarshal(r.text, &s)
		return fmt.Sprint(r.code, " ", s.ID, " ", s.Outcome, " ", s.Created)
	}
	for _, x := range []struct{ id, unique, want string }{
		{"u1", `{"key":"k"}`, "201 u1 created true"},
		{"u2", `{"key":"k"}`, "200 u1 kept false"},
		{"u2", `{"key":"k","on_conflict":"replace"}`, "200 u1 replaced false"},
		{"u2", `{"key":"k","on_conflict":"push-back","max_wait":"2h"}`, "200 u1 pushed-back false"},
		{"u2", `{"key":"k","on_conflict":"push-back"}`, "422   false"},
		{"u2", `{"key":"k","on_conflict":"throttle"}`, "422   false"},
		{"u2", `{"key":"k","cooldown":"soon"}`, "422   false"},
		{"u2?replace=true", `{"key":"k"}`, "422   false"},
		{"u2", `{}`, "422   false"},
	} {
		if got := put(x.id, x.unique); got != x.want {
			t.Errorf("%s %s: got %q, want %q", x.id, x.unique, got, x.want)
		}
	}
	batch := w.must(200, "POST", "/api/v1/tasks",
		`{"tasks":[{"id":"u3","queue":"orders","due":"1h","unique":{"key":"k"}},{"id":"u4","queue":"orders","due":"1h"}]}`)
	if got := fmt.Sprint(batch["created"], batch["tasks"]); got != "1 [map[asked:u3 created:false id:u1 outcome:kept] map[asked:u4 created:true id:u4]]" {
		t.Errorf(`a batch: got %s, want "1 [map[asked:u3 created:false id:u1 outcome:kept] map[asked:u4 created:true id:u4]]"`, got)
	}
	if list := w.must(200, "GET", "/api/v1/tasks?unique_key=k", "")["tasks"].([]any); len(list) != 1 || list[0].(map[string]any)["unique_key"] != "k" {
		t.Errorf(`the tasks with the key: got %v, want one with "unique_key": "k"`, list)
	}
}

// If the task that a request scheduled has finished, repeating the request returns the outcome "ended".
func TestUniqueKeyOfAnEndedTask(t *testing.T) {
	w := newWorld(t)
	const body = `{"queue":"orders","due":"2030-01-01T00:00:00Z","unique":{"key":"k"}}`
	w.must(201, "PUT", "/api/v1/tasks/u1", body)
	w.must(200, "POST", "/api/v1/tasks/u1/cancel", "")
	again := w.must(200, "PUT", "/api/v1/tasks/u1", body)
	if again["outcome"] != "ended" {
		t.Errorf("got the outcome %v, want ended", again["outcome"])
	}
	if again["created"] != false {
		t.Errorf("got created = %v, want false", again["created"])
	}
}

// A problem response describes the error without repeating a long request.
func TestProblemsAreBounded(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("ä", 10_000)
	for name, body := range map[string]string{
		"no JSON":       long,
		"a long value":  `{"due":"1h","queue":"q","priority":"` + long + `"}`,
		"a long key":    `{"due":"1h","queue":"q","` + long + `":1}`,
		"a long object": `{"due":"1h","queue":"q","tags":{"a":"` + long + `"}}`,
		"many keys":     `{"due":"1h","queue":"q"` + manyKeys(2000) + `}`,
	} {
		r := w.ask("PUT", "/api/v1/tasks/a", body)
		if r.code != 400 && r.code != 422 || len(r.text) > 4096 || r.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %d with the content type %s and %d bytes, want 400 or 422, application/problem+json and at most 4096: %.300s", name, r.code, r.header.Get("Content-Type"), len(r.text), r.text)
			continue
		}
		if list, _ := r.json(t)["errors"].([]any); len(list) == 0 || list[0].(map[string]any)["message"] == "" {
			t.Errorf("%s: got %s, want at least one error with a message", name, r.text)
		}
	}
	if r := w.ask("GET", "/api/v1/tasks?limit="+long, ""); r.code != 422 || len(r.text) > 4096 {
		t.Errorf("a long query parameter: got %d and %d bytes, want 422 and at most 4096", r.code, len(r.text))
	}
	if r := w.ask("PUT", "/api/v1/tasks/a", `{"due":"1h","queue":"q","priority":"high"}`); !strings.Contains(string(r.text), `"high"`) {
		t.Errorf("an invalid short value: got %s, want \"high\" quoted in it", r.text)
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"key%d":1`, i)
	}
	return b.String()
}

// An unknown destination can be paused, limited or resumed, but the response has a note that the name may be misspelt.
func TestHoldBackUnknownDestination(t *testing.T) {
	w := newWorld(t)
	w.must(201, "PUT", "/api/v1/tasks/a", `{"queue":"mail","due":"1h"}`)
	w.must(201, "PUT", "/api/v1/tasks/b", `{"exchange":"events","routing_key":"k","due":"1h"}`)
	w.must(200, "GET", "/api/v1/overview", "") // the overview contains the queue orders
	const unknown = "no task, no recurring task and no destination has the name "
	for to, want := range map[string]any{
		`"queue":"mail"`: nil, `"exchange":"events"`: nil, `"queue":"orders"`: nil,
		`"queue":"mial"`:     unknown + "mial; did you mean mail?",
		`"queue":"oders"`:    unknown + "oders; did you mean orders?",
		`"exchange":"event"`: unknown + "event; did you mean events?",
	} {
		for _, c := range []struct {
			path, more string
			want       any
		}{
			{"resume", "", want}, {"rate-limit", `,"per_second":0`, want},
			{"pause", "", want}, {"rate-limit", `,"per_second":5`, want},
			{"resume", "", want}, {"rate-limit", `,"per_second":0`, nil}, // the destination was limited, so its name was not misspelt
		} {
			if got := w.must(200, "POST", "/api/v1/destinations/"+c.path, "{"+to+c.more+"}")["note"]; got != c.want {
				t.Errorf("%s of %s%s: got the note %v, want %v", c.path, to, c.more, got, c.want)
			}
		}
	}
}

// The error about a value of the wrong type contains the names of JSON types only.
func TestNamesNoStruct(t *testing.T) {
	w := newWorld(t)
	r := w.ask("PUT", "/api/v1/tasks/a", `{"queue":"q","due":"1h","priority":1.0}`)
	if r.code != http.StatusUnprocessableEntity || !strings.Contains(string(r.text), `"priority: expected an integer`) {
		t.Errorf(`got %d %s, want 422 and "priority: expected an integer" in it`, r.code, r.text)
	}
}
