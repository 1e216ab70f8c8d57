package console

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A task with any id can be read and changed by a parameter, and also by a path if a path can contain the id.
func TestEveryIDIsAddressable(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{
		"/", ".", "..", "//", "/.", "-", "a/b", "a/../b", "a b", "é", "😀", "%", "%2F", "?", "#", "&id=x", "+", "\n", "~", "bulk",
		"cancel", "a;b", `"\`, strings.Repeat("é", 127) + "x",
	} {
		ways := []string{"/api/v1/tasks/-%s?id=" + url.QueryEscape(id)}
		if id != "/" && id != "." && id != ".." { // the server's router, clients or proxies interpret these differently
			ways = append(ways, "/api/v1/tasks/"+url.PathEscape(id)+"%s")
		}
		for _, way := range ways {
			at := func(verb string) string { return strings.Replace(way, "%s", verb, 1) }
			if r := w.ask("PUT", at(""), `{"queue":"orders","due":"2h"}`); r.code != 201 && r.code != 200 || r.json(t)["id"] != id {
				t.Errorf("id %q: PUT %s: got %d %s, want 200 or 201 with that id", id, way, r.code, r.text)
				continue
			}
			w.must(200, "POST", at("/reschedule"), `{"by":"1h"}`)
			if got := w.must(200, "GET", at(""), "")["task"].(map[string]any); got["id"] != id || got["version"] != 2.0 {
				t.Errorf(`id %q: GET %s: got %v, want id %v and version 2`, id, way, got, id)
			}
			w.must(200, "POST", at("/run"), "")
			if got := w.must(200, "POST", at("/cancel"), ""); got["status"] != "cancelled" {
				t.Errorf(`id %q: cancel at %s: got %v, want the status "cancelled"`, id, way, got)
			}
			if got := w.must(200, "GET", strings.Replace(at(""), "/tasks/", "/trace/", 1), ""); got["id"] != id {
				t.Errorf("the trace at %s has the id %v, want %q", way, got["id"], id)
			}
			if r := w.ask("GET", "/task?id="+url.QueryEscape(id), ""); r.code != 200 {
				t.Errorf("id %q: the task's page: got %d, want 200", id, r.code)
			}
			_, err := w.db.ExecContext(t.Context(), "DELETE FROM rabbitdelay_tasks")
			check(t, err)
		}
	}
	for _, name := range []string{"/", ".", "..", "-", "a/b"} {
		at := "/api/v1/recurring/-%s?name=" + url.QueryEscape(name)
		w.must(200, "PUT", strings.Replace(at, "%s", "", 1), `{"every":"1h","queue":"orders"}`)
		if got := w.must(200, "POST", strings.Replace(at, "%s", "/pause", 1), ""); got["name"] != name {
			t.Errorf("the paused recurring task is %v, want %q", got["name"], name)
		}
		if r := w.ask("DELETE", strings.Replace(at, "%s", "", 1), ""); r.code != 204 {
			t.Errorf("deleting the recurring task %q: got %d %s, want 204", name, r.code, r.text)
		}
	}
	if r := w.ask("GET", "/api/v1/tasks/a?id=b", ""); r.code != 422 || !strings.Contains(string(r.text), "query.id") {
		t.Errorf(`an id in the path and another one in the query: got %d %s, want 422 and "query.id"`, r.code, r.text)
	}
	if r := w.ask("PUT", "/api/v1/tasks/%FF", `{"queue":"orders","due":"2h"}`); r.code != 400 || !strings.Contains(string(r.text), "expected UTF-8") {
		t.Errorf(`an id that is not UTF-8: got %d %s, want 400 and "expected UTF-8"`, r.code, r.text)
	}
	for _, at := range []string{"/api/v1/tasks/%E2%82", "/api/v1/tasks/a%00b", "/task?id=%E2%82", "/tasks?queue=a%00",
		"/api/v1/recurring/%00", "/api/v1/trace/%FF"} {
		if r := w.ask("GET", at, ""); r.code != 400 {
			t.Errorf("%s: got %d %s, want 400", at, r.code, r.text)
		}
	}
}

// A path with two slashes redirects to the page with the prefix.
func TestTwoSlashes(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.Prefix = "/delays" })
	for from, to := range map[string]string{
		"/delays//tasks?queue=a": "/delays/tasks?queue=a", "//tasks": "/delays/tasks", "/delays/./tasks/": "/delays/tasks/",
		"/delays//api/v1/tasks": "/delays/api/v1/tasks",
	} {
		if r := w.ask("GET", from, ""); r.code != 303 || r.header.Get("Location") != to {
			t.Errorf("%s: got %d to %q, want 303 to %q", from, r.code, r.header.Get("Location"), to)
		}
	}
}

// Only one large request is read at a time, which limits the memory. Small requests are still answered.
func TestLargeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		tasks := func(n int) string {
			return `{"tasks":[{"id":"a","queue":"orders","due":"2h","body":"` + strings.Repeat("x", n) + `"}]}`
		}
		w.c.large <- struct{}{}
		if r := w.ask("POST", "/api/v1/tasks", tasks(3<<20)); r.code != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("a second large request: got %d %s, want 503 with Retry-After", r.code, r.text)
		}
		if r := w.ask("POST", "/api/v1/tasks", tasks(10)); r.code != 200 {
			t.Errorf("a small request during a large one: got %d %s, want 200", r.code, r.text)
		}
		<-w.c.large
		if r := w.ask("POST", "/api/v1/tasks", tasks(25<<20)); r.code != 413 {
			t.Errorf("a request that is too large: got %d %.200s, want 413", r.code, r.text)
		}
	})
}

// If a request is refused before its body was read, the client can still read the answer, even if it sends the body
// slowly first.
func TestRefusedWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		refused := func(at string, code, parts int) {
			conn, err := w.server.Listener.(*memoryListener).dial(t.Context(), "", "")
			check(t, err)
			defer func() { _ = conn.Close() }()
			check(t, conn.SetDeadline(time.Now().Add(time.Minute))) // so that the test fails if the server neither reads nor closes the connection
			part := bytes.Repeat([]byte(" "), 1<<20)
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", at, parts*len(part))
			check(t, err)
			for i := range parts {
				if i > parts-4 { // the last parts are slow
					<-time.After(300 * time.Millisecond)
				}
				if _, err := conn.Write(part); err != nil {
					t.Fatalf("%s: sending the body: %v", at, err)
				}
			}
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			check(t, err)
			_ = r.Body.Close()
			if r.StatusCode != code {
				t.Errorf("%s: got %s, want %d", at, r.Status, code)
			}
		}
		refused("/api/v1/nothing", 404, 4)
		refused("/api/v1/tasks", 413, 28)
		w.c.large <- struct{}{}
		refused("/api/v1/tasks", 503, 4)
		<-w.c.large
	})
}

// Times in the audit log have milliseconds, including those in the description of a task.
func TestAuditHasMilliseconds(t *testing.T) {
	w := newWorld(t)
	w.must(201, "PUT", "/api/v1/tasks/a", `{"queue":"orders","due":"90m"}`)
	entries := w.must(200, "GET", "/api/v1/audit?limit=1", "")["entries"].([]any)
	if detail := entries[0].(map[string]any)["detail"].(string); !regexp.MustCompile(`^due \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`).MatchString(detail) {
		t.Errorf(`the audit entry's detail is %q, want "due" and a UTC time with milliseconds`, detail)
	}
}

// The first page shows failed tasks and late tasks.
func TestNowKnowsFailuresAndLateness(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	for i := range 40 {
		status, due := "failed", now
		if i%2 == 0 {
			status, due = "done", now.Add(-6*time.Hour)
		}
		_, err := w.db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at) VALUES (?, 'orders', ?, ?, ?)",
			fmt.Sprint(i), due.UnixMilli(), status, now.Add(-time.Duration(i)*time.Minute).UnixMilli())
		check(t, err)
	}
	page := string(w.ask("GET", "/", "").text)
	for _, want := range []string{"20 tasks failed in the last hour, up from 0 in the hour before; 20 in total", "Half of the tasks in the last hour were"} {
		if !strings.Contains(page, want) {
			t.Errorf("got the page\n%s\nwant it to contain %q", page, want)
		}
	}
	if got := fmt.Sprint(w.must(200, "GET", "/api/v1/overview", "")["ended"]); got != "map[done:20 failed:20 failed_before:0 failed_day:20 retried:0]" {
		t.Errorf("the overview's ended: got %s, want map[done:20 failed:20 failed_before:0 failed_day:20 retried:0]", got)
	}
}

// Input that JSON decoders would silently change is refused.
func TestBodiesAreTakenLiterally(t *testing.T) {
	w := newWorld(t)
	for name, x := range map[string]struct {
		body, says string
		code       int
	}{
		"an id that is not UTF-8":  {`{"tasks":[{"id":"caf` + "\xe9" + `","queue":"orders","due":"1h"}]}`, "UTF-8", 400},
		"a body that is not UTF-8": {`{"tasks":[{"id":"a","queue":"orders","due":"1h","body":"` + "\xff" + `"}]}`, "UTF-8", 400},
		"a name that occurs twice": {`{"tasks":[{"id":"a","queue":"orders","queue":"other","due":"1h"}]}`, `\"queue\" occurs twice in one object`, 400},
		"a header twice":           {`{"tasks":[{"id":"a","queue":"orders","due":"1h","headers":{"a":"1","a":"2"}}]}`, `\"a\" occurs twice in one object`, 400},
		"half a character":         {`{"tasks":[{"id":"a\ud83d","queue":"orders","due":"1h"}]}`, "half of a UTF-16 surrogate pair", 400},
		"the wrong half":           {`{"tasks":[{"id":"a\ude00\ud83d","queue":"orders","due":"1h"}]}`, "half of a UTF-16 surrogate pair", 400},
		"a field in other letters": {`{"tasks":[{"id":"a","queue":"orders","QUEUE":"mail","due":"1h"}]}`, "unexpected property", 422},
		"a number with a fraction": {`{"tasks":[{"id":"a","queue":"orders","due":"1h","priority":1.0}]}`, "expected an integer", 422},
		"a header that routes":     {`{"tasks":[{"id":"a","queue":"orders","due":"1h","headers":{"CC":"b"}}]}`, "CC", 200},
		"a header of ours":         {`{"tasks":[{"id":"a","queue":"orders","due":"1h","headers":{"rabbitdelay-due":"1"}}]}`, "rabbitdelay-due", 200},
		"a header that delays":     {`{"tasks":[{"id":"a","queue":"orders","due":"1h","headers":{"x-delay":"1"}}]}`, "x-delay", 200},
		"an id of too many bytes":  {`{"tasks":[{"id":"` + strings.Repeat("é", 128) + `","queue":"orders","due":"1h"}]}`, "expected at most 255", 200},
	} {
		r := w.ask("POST", "/api/v1/tasks", x.body)
		if r.code != x.code || !strings.Contains(string(r.text), x.says) {
			t.Errorf("%s: got %d %s, want %d and %q in it", name, r.code, r.text, x.code, x.says)
		}
		if strings.Contains(string(r.text), "Go struct") {
			t.Errorf("%s: got the error %s, want no Go type in it", name, r.text)
		}
		if r.code == 200 && r.json(t)["created"] != 0.0 {
			t.Errorf("%s: got %s, want \"created\": 0", name, r.text)
		}
	}
	if list := w.must(200, "GET", "/api/v1/tasks", "")["tasks"].([]any); len(list) != 0 {
		t.Errorf("after invalid requests, the tasks are %v, want none", list)
	}
	w.must(201, "PUT", "/api/v1/tasks/-?id="+url.QueryEscape("a😀"), `{"queue":"orders","due":"1h","body":"\ud83d\ude00"}`)
	r := w.ask("PUT", "/api/v1/tasks/-?id="+url.QueryEscape("a"+strings.Repeat("é", 127)+"é"), `{"queue":"orders","due":"1h"}`)
	if r.code != 422 {
		t.Errorf("a long id in the query: got %d %s, want 422", r.code, r.text)
	}
}

// A path with a dot in place of an id is not treated as the path of the list.
func TestDotsInPaths(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/api/v1/jobs/.", "/api/v1/tasks/.", "/api/v1/tasks/..", "/api/v1/jobs/../tasks"} {
		if r := w.ask("GET", path, ""); r.code != 400 {
			t.Errorf("GET %s: got %d %s, want 400", path, r.code, r.text)
		}
	}
}
