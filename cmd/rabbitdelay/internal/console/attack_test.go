package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// ids lists ids that attackers might try.
var ids = []string{
	"a/b?c=d&e#f%41", "x\ny", "\u202eevil", `<script>alert(1)</script>`, "..", ".", "../../x", "%2e%2e", "/", "//", "?", "#", "%", "+",
	" a b", "\x01", "ключ", `"><img src=x>`, "a\\b", ";", strings.Repeat("ü", 127),
}

// A task's id may contain any characters, in the API's paths and on every page.
func TestHostileIDs(t *testing.T) {
	w := newWorld(t)
	for _, id := range ids {
		path := "/api/v1/tasks/" + url.PathEscape(id)
		if id == "." || id == ".." || id == "/" { // clients and proxies resolve these paths
			check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
		} else {
			if r := w.ask("PUT", path, `{"queue":"orders","due":"1h","body":"<script>alert(1)</script>"}`); r.code != 201 {
				t.Errorf("PUT of a task with the id %q: got %d %s, want 201", id, r.code, r.text)
				continue
			}
			if got := w.must(200, "GET", path, "")["task"].(map[string]any)["id"]; got != id {
				t.Errorf("got a task with the id %q, want %q", got, id)
			}
			w.must(200, "GET", "/api/v1/trace/"+url.PathEscape(id), "")
			w.must(200, "POST", path+"/reschedule", `{"by":"1h"}`)
		}
		b := &browser{w: w}
		form := url.Values{"at": {"+2h"}, "token": {b.token()}}
		for page, field := range map[string]string{"/task": "id", "/task-reschedule": "id", "/trace": "id", "/audit": "target"} {
			r := w.ask("GET", page+"?"+url.Values{field: {id}}.Encode(), "")
			text := string(r.text)
			if r.code != 200 {
				t.Errorf("id %q: GET %s: got %d\n%s\nwant 200", id, page, r.code, text)
			}
			for _, raw := range []string{"<script>alert", "<img", "\u202e", "\x01"} {
				if strings.Contains(text, raw) {
					t.Errorf("id %q: GET %s returns the raw text %q:\n%s", id, page, raw, text)
				}
			}
		}
		r := w.post("/task-reschedule?"+url.Values{"id": {id}}.Encode(), form, nil)
		to, err := url.Parse(r.header.Get("Location"))
		if r.code != 303 || err != nil || to.Path != "task" || to.Query().Get("id") != id {
			t.Errorf(`id %q, rescheduled: got %d, %v, Location %q, want 303 and the path "task" with the id %q`,
				id, r.code, err, r.header.Get("Location"), id)
			continue
		}
		if r := w.ask("GET", "/"+to.String(), ""); r.code != 200 || !strings.Contains(string(r.text), "The task was rescheduled.") {
			t.Errorf("id %q, after it was moved: got %d\n%s\nwant 200 and a text with \"The task was rescheduled.\"", id, r.code, r.text)
		}
	}
}

// A request is refused with a reason, and changes nothing, if its body has the wrong content type, is malformed or too
// large, or if the fields of a form are in the query instead.
func TestStrangeBodies(t *testing.T) {
	w := newWorld(t)
	w.lay()
	check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
	token := (&browser{w: w}).token()
	form := url.Values{"id": {"a"}, "token": {token}}
	multipart := "--x\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\na\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\n" + token + "\r\n--x--\r\n"
	large := strings.Repeat("x", 10<<20)
	text, err := json.Marshal(map[string]string{"queue": "orders", "due": "1h", "body": large[:1<<20]})
	check(t, err)
	before := w.state()
	for name, x := range map[string]struct {
		path, body, kind string
		least, most      int
	}{
		"JSON to a form":             {"/task-cancel", `{"id":"a","token":"` + token + `"}`, "application/json", 400, 415},
		"text to a form":             {"/task-cancel", form.Encode(), "text/plain", 400, 415},
		"multipart to a form":        {"/task-cancel", multipart, "multipart/form-data; boundary=x", 400, 415},
		"no kind":                    {"/task-cancel", form.Encode(), "", 400, 415},
		"half a percent":             {"/task-cancel", "id=%&token=" + token, "application/x-www-form-urlencoded", 400, 400},
		"the token in the query":     {"/task-cancel?token=" + token, "id=a", "application/x-www-form-urlencoded", 403, 403},
		"all in the query":           {"/task-cancel?" + form.Encode(), "", "application/x-www-form-urlencoded", 403, 403},
		"10 MB in a field for an id": {"/task-cancel", url.Values{"id": {large}, "token": {token}}.Encode(), "application/x-www-form-urlencoded", 400, 413},
		"30 MB":                      {"/task-cancel", "id=" + large + large + large, "application/x-www-form-urlencoded", 413, 413},
		"10 MB of JSON":              {"/api/v1/tasks/bulk", `{"x":"` + large + `"}`, "application/json", 413, 413},
		"a form to the API":          {"/api/v1/tasks/bulk", "action=cancel&count=1", "application/x-www-form-urlencoded", 400, 422},
		"text to the API":            {"/api/v1/tasks/bulk", `{"action":"cancel","filter":{"queue":"orders"},"count":5}`, "text/plain", 400, 422},
		"XML to the API":             {"/api/v1/tasks/bulk", `<a/>`, "application/xml", 400, 422},
		"half JSON":                  {"/api/v1/tasks/bulk", `{"action":`, "application/json", 400, 422},
		"deep JSON":                  {"/api/v1/tasks/bulk", strings.Repeat("[", 12_000), "application/json", 400, 422},
		"a list for an object":       {"/api/v1/tasks/bulk", `[]`, "application/json", 400, 422},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, x.path, strings.NewReader(x.body))
		r.Host = "localhost"
		r.Header.Set("Content-Type", x.kind)
		got := httptest.NewRecorder() // a real connection would be reset while the rest of the body is being sent
		w.c.ServeHTTP(got, r)
		if got.Code < x.least || got.Code > x.most || got.Body.Len() > 20_000 {
			t.Errorf("%s: got %d, want %d to %d: %.300s", name, got.Code, x.least, x.most, got.Body)
		}
	}
	if after := w.state(); after != before {
		t.Errorf("after the attacks, the tasks are\n%s\nwant\n%s", after, before)
	}
	// A task's body may be large.
	w.must(201, "PUT", "/api/v1/tasks/large", string(text))
	if r := w.ask("GET", "/task?id=large", ""); r.code != 200 || len(r.text) > 100_000 {
		t.Errorf("the page of a large task: got %d and %d bytes, want 200 and at most 100000", r.code, len(r.text))
	}
	form = url.Values{"id": {"large 2"}, "at": {"+1h"}, "queue": {"orders"}, "body": {large[:1<<20]}, "token": {token}}
	if r := w.post("/task-new", form, nil); r.code != 303 {
		t.Errorf("a body of 1 MiB in the form: got %d %.300s, want 303", r.code, r.text)
	}
}

// Other requests are answered while two hundred clients have live pages open.
func TestManyWatchers(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 200 {
		path := []string{"/live", "/live-tasks?status=pending", "/api/v1/events", "/live-tasks?queue=orders"}[i%4]
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path, http.NoBody)
		check(t, err)
		got, err := w.client.Do(r)
		check(t, err)
		t.Cleanup(func() { _ = got.Body.Close() })
		if _, err := io.ReadFull(got.Body, make([]byte, 6)); err != nil || got.StatusCode != http.StatusOK {
			t.Fatalf("%s: got %d %v, want no error and 200", path, got.StatusCode, err)
		}
	}
	w.must(200, "GET", "/api/v1/counts", "")
	if r := w.ask("GET", "/tasks", ""); r.code != 200 {
		t.Errorf("a request while 200 clients watch: got %d, want 200", r.code)
	}
}

// Forms from clients that are not logged in use little memory. The size of a login is limited, and only a few large
// forms are read at the same time.
func TestFormsWithoutALogin(t *testing.T) {
	_, users := withUsers(t)
	w := newWorld(t, users)
	post := func(path string, body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		got := httptest.NewRecorder()
		w.c.ServeHTTP(got, r)
		return got
	}
	if got := post("/login", strings.NewReader("name=otto&password="+strings.Repeat("x", 100<<10))); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a login of 100 KiB: got %d, want 413", got.Code)
	}
	if got := post("/task-new", strings.NewReader("body="+strings.Repeat("x", 10<<20))); got.Code != http.StatusUnauthorized || got.Body.Len() > 20_000 {
		t.Errorf("a form of 10 MiB: got %d and %d bytes, want 401 and at most 20000", got.Code, got.Body.Len())
	}
	if got := post("/task-new", strings.NewReader("body="+strings.Repeat("x", 3<<20))); got.Code != http.StatusUnauthorized || got.Body.Len() < 3<<20 {
		t.Errorf("a form with a body of 1 MiB, percent-encoded: got %d and %d bytes, want 401 and the form again", got.Code, got.Body.Len())
	}
	var ended sync.WaitGroup
	var slow []*io.PipeWriter
	for range maxAtOnce {
		body, from := io.Pipe()
		slow = append(slow, from)
		ended.Go(func() {
			if got := post("/task-new", body); got.Code != http.StatusUnauthorized {
				t.Errorf("a slow form: got %d, want 401", got.Code)
			}
		})
		_, err := from.Write([]byte("body=")) // the server reads this form and waits for the rest
		check(t, err)
	}
	got := post("/task-new", strings.NewReader("body=x"))
	if got.Code != http.StatusServiceUnavailable {
		t.Errorf("a form while %d forms are being read: got %d, want 503", maxAtOnce, got.Code)
	}
	if !strings.Contains(got.Body.String(), "go back and try again") {
		t.Errorf(`a form while %d forms are being read: got %s, want it to contain "go back and try again"`, maxAtOnce, got.Body)
	}
	if r := w.ask("GET", "/tasks", ""); r.code != 401 {
		t.Errorf("a page during the attack: got %d, want 401", r.code)
	}
	if b, r := w.login("otto", password); r.code != 303 || w.ask("GET", "/tasks", "", b.with).code != 200 {
		t.Errorf("a login during the attack: got %d, want 303 and then 200", r.code)
	}
	for _, from := range slow {
		check(t, from.Close())
	}
	ended.Wait()
	if got := post("/task-new", strings.NewReader("body=x")); got.Code != http.StatusUnauthorized {
		t.Errorf("a form after the attack: got %d, want 401", got.Code)
	}
}

// FuzzAPIBody calls the operations that write tasks with any body. They never return a server error, and every response
// is JSON.
func FuzzAPIBody(f *testing.F) {
	w := newWorld(f)
	operations := []struct{ method, path string }{
		{http.MethodPut, "/api/v1/tasks/a"},
		{http.MethodPost, "/api/v1/tasks"},
		{http.MethodPost, "/api/v1/tasks/bulk"},
		{http.MethodPost, "/api/v1/tasks/a/reschedule"},
		{http.MethodPut, "/api/v1/recurring/r"},
	}
	for n, body := range []string{
		`{"queue":"orders","due":"1h","tags":null,"headers":{"a":"b"},"body":"x"}`,
		`{"tasks":[{"id":"b","queue":"orders","due":"2026-01-02T08:00:00Z"}]}`,
		`{"action":"reschedule","by":"1h","filter":{"queue":"x","due_before":"1h"},"dry_run":true}`,
		`{"due":"1h"}`,
		`{"every":"1h","queue":"orders","tags":["a"]}`,
	} {
		f.Add(uint8(n), []byte(body))
	}
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		o := operations[int(n)%len(operations)]
		r := httptest.NewRequestWithContext(t.Context(), o.method, o.path, bytes.NewReader(body))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		got := httptest.NewRecorder()
		w.c.ServeHTTP(got, r)
		if got.Code >= 500 || !json.Valid(got.Body.Bytes()) {
			t.Errorf("%s %s with body %q: got %d %.300s, want JSON and a status below 500", o.method, o.path, body, got.Code, got.Body)
		}
	})
}
