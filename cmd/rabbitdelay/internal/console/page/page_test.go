package page

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// console serves the pages of a fake service as a certain user sees them.
type console struct {
	*fake

	pages *Pages
	who   service.Caller
}

func open(role service.Role) *console {
	f := newFake(noon)
	c := &console{fake: f, who: service.Caller{Identity: service.Identity{Name: "anna", Role: role}, FormToken: "t0ken", Session: true}}
	c.pages = New(f, Options{Now: func() time.Time { return f.now }, TraceURL: "https://traces.example.org/{id}"})
	return c
}

func (c *console) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.pages.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), c.who)))
	return w
}

func (c *console) get(path string) *httptest.ResponseRecorder {
	return c.do(httptest.NewRequest(http.MethodGet, "/"+path, http.NoBody))
}

func (c *console) post(path string, form url.Values) *httptest.ResponseRecorder {
	return c.do(httptestPost(path, form))
}

func httptestPost(path string, form url.Values) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// reading lists the paths of all pages that change nothing.
var reading = []string{
	"", "?from=2026-11-22T12:00:00Z&to=2026-11-23T12:00:00Z", "tasks", "tasks?queue=mail&status=pending",
	"task-errors?queue=mail", "task-errors?order=most&status=pending", link("task", "id", scriptTag),
	link("task", "id", "binary"), "task?id=empty",
	"trace?id=binary", "trace?id=dead-1", "trace?id=none", link("trace", "id", scriptTag), link("trace", "id", override),
	"recurring", "recurring-task?name=nightly-report", link("recurring-task", "name", scriptTag), "dead",
	"dead-queue?queue=mail.dead", "dead-errors?queue=mail.dead", "layouts", "held", "audit", "audit?target=heartbeat",
	"job?id=running", "job?id=done",
}

// asking lists the forms that change something, with their fields.
var asking = map[string]url.Values{
	"task-cancel": {"id": {"binary"}}, "task-run": {"id": {"binary"}},
	"task-reschedule": {"id": {"binary"}, "at": {"+1h"}}, "task-revive": {"id": {"order-10035-expire"}},
	"task-new": {"id": {"new"}, "at": {"+1h"}, "queue": {"mail"}},
	"bulk":     {"action": {"cancel"}, "queue": {"mail"}, "count": {"3"}}, "job-stop": {"id": {"running"}},
	"job-continue":    {"id": {"interrupted"}},
	"recurring-edit":  {"name": {"new"}, "every": {"1m"}, "queue": {"mail"}},
	"recurring-pause": {"name": {"heartbeat"}}, "recurring-resume": {"name": {"heartbeat"}},
	"recurring-run": {"name": {"heartbeat"}}, "recurring-delete": {"name": {"heartbeat"}},
	"requeue": {"queue": {"mail.dead"}, "count": {"3"}}, "discard": {"queue": {"mail.dead"}, "count": {"3"}}, "retire": {},
	"destination-pause": {"queue": {"mail"}}, "destination-resume": {"exchange": {"events"}, "spread": {"30m"}},
	"destination-rate-limit": {"queue": {"mail"}, "per-second": {"50"}},
}

// A group of failed tasks links to its tasks and, for operators, to changes of exactly these tasks.
func TestTaskErrors(t *testing.T) {
	c := open(service.RoleOperator)
	body := html.UnescapeString(c.get("task-errors?tag=vip").Body.String())
	for _, link := range []string{
		"tasks?error-like=payment+provider%3A+%23&queue=mail&status=failed&tag=vip",
		"bulk?action=revive&error-like=payment+provider%3A+%23&queue=mail&status=failed&tag=vip",
		"bulk?action=delete&error-like=payment+provider%3A+%23&queue=mail&status=failed&tag=vip",
	} {
		if !strings.Contains(body, `href="`+link+`"`) {
			t.Errorf("the page has no link to %s, want one:\n%s", link, body)
		}
	}
	if n := strings.Count(body, `href="bulk?`); n != 2 {
		t.Errorf("got %d links to changes, want 2: a group without an error has none", n)
	}
	if !strings.Contains(body, "Only the newest 3 were read") {
		t.Errorf("got the page\n%s\nwant the text \"Only the newest 3 were read\"", body)
	}
	c = open(service.RoleViewer)
	if body := c.get("task-errors").Body.String(); strings.Contains(body, `href="bulk?`) {
		t.Errorf("a viewer gets the page\n%s\nwant no link to a bulk change", body)
	}
	if w := c.get("task-errors?order=last"); w.Code != http.StatusBadRequest {
		t.Errorf("an unknown order: got %d, want 400", w.Code)
	}
}

// A misspelt field must not select everything, especially on a page that can change the selected tasks, nor be ignored
// in a form. Every page refuses a field that it does not have, and no page refuses a field of its own form.
func TestUnknownFields(t *testing.T) {
	c := open(service.RoleOperator)
	for pattern := range c.pages.routes() {
		if pattern == "/" || pattern == "GET /assets/" { // there is no page
			continue
		}
		method, path, _ := strings.Cut(strings.TrimSuffix(pattern, "{$}"), " ")
		w := c.do(httptest.NewRequest(method, path+"?qeue=mail", http.NoBody))
		if want := "qeue: unknown field; expected "; w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got status %d, want 400 and a page containing %q", pattern, w.Code, want)
		}
	}
	for path, form := range asking {
		_, body, _ := strings.Cut(c.get(withQuery(path, form)).Body.String(), "<main")
		body, _, _ = strings.Cut(body, "</main>")
		fields := formField.FindAllStringSubmatch(body, -1)
		if len(fields) == 0 {
			t.Errorf("%s: got no field, want a form:\n%s", path, body)
		}
		for _, field := range fields {
			if w := c.get(path + "?" + field[1] + "="); strings.Contains(w.Body.String(), "unknown field") {
				t.Errorf("%s: the field %s of its form is refused with status %d, want it accepted", path, field[1], w.Code)
			}
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("got the calls %q, want none", c.calls)
	}
}

// formField matches a field of a form.
var formField = regexp.MustCompile(`<(?:input|select|textarea|button)[^>]* name="([^"]+)"`)

// A malformed query is an error, because ignoring a part of it would select too much.
func TestMalformedQueries(t *testing.T) {
	c := open(service.RoleOperator)
	for path, says := range map[string]string{
		"tasks?queue=%zz":                         "invalid URL escape",
		"tasks?queue=mail;status=failed":          "invalid semicolon",
		"tasks?queue=mail&queue=orders":           "given 2 times",
		"bulk?action=cancel&queue=a&queue=b":      "given 2 times",
		"bulk?action=cancel&status=pending&tag=%": "invalid URL escape",
	} {
		if w := c.get(path); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s: got status %d, want 400 and a page containing %q", path, w.Code, says)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("got the calls %q, want none", c.calls)
	}
}

func TestPages(t *testing.T) {
	c := open(service.RoleOperator)
	for _, path := range reading {
		w := c.get(path)
		if w.Code != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(w.Body.String()), "</html>") {
			t.Errorf("%q: got %d\n%s\nwant 200 and a body that ends with \"</html>\"", path, w.Code, w.Body)
		}
	}
	for path, form := range asking {
		if w := c.get(withQuery(path, form)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `method="post"`) {
			t.Errorf("%q: got %d\n%s\nwant 200 and a body with \"method=\"post\"\"", path, w.Code, w.Body)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("a GET request caused the calls %q, want none", c.calls)
	}
}

// The confirmation page warns if the destination to be paused, limited or resumed is unknown.
func TestHoldBackQuestion(t *testing.T) {
	c := open(service.RoleOperator)
	for path, want := range map[string]bool{
		"destination-pause?queue=mial": true, "destination-rate-limit?queue=mial": true,
		"destination-pause?queue=mail": false, "destination-resume?queue=mial": true, "destination-resume?queue=mail": false,
	} {
		if body := c.get(path).Body.String(); strings.Contains(body, "has the name mial; did you mean mail?") != want {
			t.Errorf("%s: the page suggests the name mail: got %t, want %t\n%s", path, !want, want, body)
		}
	}
}

// The trace page has a field for an id, and shows where the message with that id is. It links a user who may requeue
// the message to the form.
func TestTrace(t *testing.T) {
	c := open(service.RoleOperator)
	if body := c.get("trace").Body.String(); !strings.Contains(body, `id="trace-id"`) || strings.Contains(body, "In the database") {
		t.Errorf("the page without an id: got\n%s\nwant the field trace-id and no \"In the database\"", body)
	}
	for path, want := range map[string][]string{
		"trace?id=binary++": {
			"Idempotency records", "without the effect", `href="task?id=binary"`, "all of 12 messages",
			"the first 1,000 of 4,200 messages", "20,400 messages wait in 2 delay queues",
		},
		"dead-errors?queue=mail.dead&order=most": {
			"ordered by most", "100,000 of 100,012 messages", `href="requeue?destination=mail&amp;error-like=smtp`,
			"3 messages are in other groups",
		},
		"trace?id=dead-1": {"There is no task with this ID.", `href="dead-queue?queue=mail.dead"`, `href="requeue?dry=1&amp;ids=dead-1&amp;queue=mail.dead"`},
		"trace?id=none":   {"Nothing is known about this id", "Not checked: broker"},
		"task?id=binary":  {`href="trace?id=binary"`},
	} {
		body := c.get(path).Body.String()
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("page %s: got\n%s\nwant it to contain %q", path, body, w)
			}
		}
	}
}

// The page shows the relays that are recorded in the database. If none is running, the verdict says so.
func TestRelays(t *testing.T) {
	gone := taskview.Relay{Name: "shop-2:17", Seen: time.Now().Add(-7 * time.Hour)}
	runs := taskview.Relay{Name: "shop-1:4711", Seen: time.Now()}
	for _, tt := range []struct {
		relays []taskview.Relay
		none   bool
	}{{nil, false}, {[]taskview.Relay{}, true}, {[]taskview.Relay{gone}, true}, {[]taskview.Relay{runs, gone}, false}} {
		o := service.Overview{At: time.Now()}
		o.Status.Tasks = &status.Tasks{Relays: tt.relays}
		none := slices.ContainsFunc(judge(english, o, o.At).Reasons, func(r reason) bool { return strings.Contains(r.Text, "No relay is running") })
		if none != tt.none {
			t.Errorf("relays %v: got the reason \"No relay is running\" = %t, want %t", tt.relays, none, tt.none)
		}
	}
	body := open(service.RoleOperator).get("").Body.String()
	if strings.Count(body, ">gone<") != 1 || !strings.Contains(body, "shop-1:4711") {
		t.Errorf("got the page\n%s\nwant only the relay shop-1:4711 shown as gone", body)
	}
}

// Texts from other sources are never markup. Pages need no inline script or style, and load nothing from other sites.
func TestHostileTexts(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son[a-z]+="|javascript:|(src|href|action)="(https?:)?//[^t]`)
	for _, role := range []service.Role{service.RoleViewer, service.RoleOperator} {
		c := open(role)
		paths := slices.Clone(reading)
		for _, id := range []string{override, longID, "a/b?c=d&e#f/../g", `"onmouseover="alert(1)`} {
			paths = append(paths, link("task", "id", id))
		}
		if role == service.RoleOperator {
			for path, form := range asking {
				paths = append(paths, withQuery(path, form))
			}
			paths = append(paths, link("task-cancel", "id", scriptTag), link("task-new", "copy", scriptTag),
				link("recurring-edit", "edit", scriptTag), link("requeue", "queue", scriptTag, "dry", "1"))
		}
		for _, path := range paths {
			body := c.get(path).Body.String()
			if found := inline.FindString(body); found != "" {
				t.Errorf("page %s contains %q, want no inline scripts or styles", path, found)
			}
			// A form that copies a task must contain the task's strings unchanged.
			if strings.Contains(body, "\u202e") && !strings.Contains(path, "copy=") {
				t.Errorf("page %s contains U+202E, which reverses the direction of text, want it escaped", path)
			}
		}
	}
}

func TestBodies(t *testing.T) {
	c := open(service.RoleOperator)
	if body := c.get("task?id=binary").Body.String(); !strings.Contains(body, "00 01 02 ff fe 3c 73 3e") || !strings.Contains(body, "AAEC//48cz4=") {
		t.Errorf("the page of a task with a binary body: got\n%s\nwant it in hex and base64", body)
	}
	if body := c.get("task?id=order-10000-expire").Body.String(); !strings.Contains(body, "{&#34;order&#34;: 42}") {
		t.Errorf("the page of a task with a JSON body: got\n%s\nwant it as text", body)
	}
	// The fake service returns the body to every role, and the pages hide it.
	c = open(service.RoleViewer)
	for _, path := range []string{"task?id=order-10000-expire", "dead-queue?queue=mail.dead", "recurring-task?name=nightly-report"} {
		body := c.get(path).Body.String()
		for _, private := range []string{"&#34;order&#34;", "a@example.org", "daily"} {
			if strings.Contains(body, private) {
				t.Errorf("page %s shows a viewer %q, want bodies to be hidden", path, private)
			}
		}
	}
}

// A recurring task has the same state as in the output of the command. Only active ones have upcoming times.
func TestRecurringStates(t *testing.T) {
	c := open(service.RoleOperator)
	for name, state := range map[string]string{"nightly-report": "active", "heartbeat": "paused", scriptTag: "invalid"} {
		body := c.get(link("recurring-task", "name", name)).Body.String()
		if !strings.Contains(body, `<span class="status `+state+`">`+state+`</span>`) || strings.Contains(body, "Scheduled</th>") != (state == "active") {
			t.Errorf("page of the recurring task %s: got\n%s\nwant the state %s, and upcoming times only if it is active", name, body, state)
		}
	}
}

func TestViewerMayLookOnly(t *testing.T) {
	c := open(service.RoleViewer)
	for _, path := range reading {
		body := c.get(path).Body.String()
		for _, m := range regexp.MustCompile(`(?:action|href)="([a-z-]+)`).FindAllStringSubmatch(body, -1) {
			if _, ok := asking[m[1]]; ok {
				t.Errorf("page %q offers a viewer the action %s, want no actions", path, m[1])
			}
		}
	}
	for path, form := range asking {
		if w := c.get(withQuery(path, form)); w.Code != http.StatusForbidden {
			t.Errorf("GET %s: got %d, want 403", path, w.Code)
		}
		if w := c.post(path, form); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `aria-label="Pages"`) {
			t.Errorf(`POST %s: got %d, want 403 and a page with the navigation`, path, w.Code)
		}
	}
	c.who = service.Caller{}
	for _, path := range append(slices.Clone(reading), "live", "live-tasks", "live-dead", "live-layouts", "live-recurring", "live-audit", "live-held") {
		if w := c.get(path); w.Code != http.StatusForbidden {
			t.Errorf("without a login, %q: got %d, want 403", path, w.Code)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("a viewer caused the calls %q, want none", c.calls)
	}
}

func TestActions(t *testing.T) {
	c := open(service.RoleOperator)
	for _, x := range []struct {
		path, form, to, call string
	}{
		{"task-reschedule", "id=binary&at=tomorrow+08:00+Europe/Berlin", "task?done=reschedule&id=binary", "reschedule binary"},
		{"task-run", "id=binary", "task?done=run&id=binary", "run binary"},
		{"task-cancel", "id=binary", "task?done=cancel&id=binary", "cancel binary"},
		{"task-revive", "id=order-10035-expire", "task?done=revive&id=order-10035-expire", "revive order-10035-expire"},
		{"task-new", "id=new&at=%2B1h&queue=mail&body=aGk=&encoding=base64", "task?done=scheduled&id=new", "schedule new for anna at 2026-11-22T13:00:00Z: hi"},
		{"retire", "", "job?id=done", "retire"},
		{"recurring-edit", "name=new&cron=@daily&queue=mail", "recurring-task?done=put&name=new", "put new @daily 0s"},
		{"destination-pause", "queue=mail", "held?done=pause", "pause destination mail"},
		{"destination-resume", "exchange=events&spread=30m", "held?done=resume", "resume destination events 30m0s"},
		{"recurring-delete", "name=heartbeat", "recurring?done=delete", "delete heartbeat"},
	} {
		c.calls = nil
		form, err := url.ParseQuery(x.form)
		if err != nil {
			t.Fatalf("%+v: %v", x, err)
		}
		w := c.post(x.path, form)
		if w.Code != http.StatusSeeOther || w.Header().Get("Location") != x.to || len(c.calls) != 1 || c.calls[0] != x.call {
			t.Errorf("POST %s %s: got %d, Location %q and calls %q, want 303, %q and %q\n%s", x.path, x.form, w.Code, w.Header().Get("Location"), c.calls, x.to, x.call, w.Body)
			continue
		}
		if w := c.get(x.to); w.Code != http.StatusOK {
			t.Errorf("the page after POST %s: got %d, want 200", x.path, w.Code)
		}
	}
	if want := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC); c.tasks["binary"].Version != 5 {
		t.Errorf("after the actions, task binary is due at %v in version %d, want version 5, due at %v", c.tasks["binary"].DeliverAt, c.tasks["binary"].Version, want)
	}
}

// If another user has changed the task first, the page says so and shows the current state of the task.
func TestTooLate(t *testing.T) {
	c := open(service.RoleOperator)
	c.post("task-cancel", url.Values{"id": {"binary"}})
	w := c.post("task-run", url.Values{"id": {"binary"}})
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "its status is cancelled, expected pending") || strings.Contains(w.Body.String(), "task-run") {
		t.Errorf("got %d\n%s\nwant 409, a body with \"its status is cancelled, expected pending\" and no \"task-run\" in it",
			w.Code, w.Body)
	}
	if w := c.get("task-run?id=binary"); !strings.Contains(w.Body.String(), "The task is cancelled") || strings.Contains(w.Body.String(), `action="task-run"`) {
		t.Errorf("got %d\n%s\nwant a body with \"The task is cancelled\" and no \"action=\"task-run\"\" in it", w.Code, w.Body)
	}
}

func TestBulkSaysWhatItDoes(t *testing.T) {
	c := open(service.RoleOperator)
	n := len(c.chosen(schedule.Filter{Queue: "mail", Status: schedule.StatusPending}))
	body := c.get("bulk?action=cancel&queue=mail").Body.String()
	for _, want := range []string{fmt.Sprintf("Cancel %d pending tasks?", n), "queue is</span> <bdi>mail", fmt.Sprintf(`name="count" value="%d"`, n)} {
		if !strings.Contains(body, want) {
			t.Errorf("the page for a bulk cancellation: got\n%s\nwant it to contain %q", body, want)
		}
	}
	if body := c.get("bulk?action=delete").Body.String(); !strings.Contains(body, "There is no filter") {
		t.Errorf("the page for a bulk deletion without a filter: got\n%s\nwant it to contain \"There is no filter\"", body)
	}
	if body := c.get("bulk?action=reschedule-by&queue=mail").Body.String(); strings.Contains(body, `method="post" action="bulk"`) {
		t.Errorf("without a duration, got the page\n%s\nwant no form that can be submitted", body)
	}
	for _, form := range []string{
		"action=explode&count=1", "action=run&status=done&count=1", "action=reschedule-by&by=0s&count=1",
		"action=run&spread=x&count=1",
	} {
		v, _ := url.ParseQuery(form)
		if w := c.post("bulk", v); w.Code != http.StatusBadRequest {
			t.Errorf("%s: got %d, want 400", form, w.Code)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("got the calls %q, want none", c.calls)
	}
}

// Together, the pages of a list show every task once.
func TestPaging(t *testing.T) {
	c := open(service.RoleOperator)
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`)
	ids := regexp.MustCompile(`<tr data-row>.*?<td data-label="Task" class="task"><a href="([^"]+)"`)
	seen := map[string]int{}
	path := "tasks?queue=&tag=tenant-7"
	for range 20 {
		body := c.get(path).Body.String()
		for _, m := range ids.FindAllStringSubmatch(body, -1) {
			seen[m[1]]++
		}
		m := next.FindStringSubmatch(body)
		if m == nil {
			break
		}
		path = strings.ReplaceAll(m[1], "&amp;", "&")
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("task %s is listed %d times, want once", id, n)
		}
	}
	if len(seen) != 240 {
		t.Errorf("the pages list %d tasks, want 240", len(seen))
	}
}

// Failed tasks are listed newest first, and other tasks by due time. Each column header links to the other order,
// and keeps the filter.
func TestSorting(t *testing.T) {
	c := open(service.RoleOperator)
	for path, want := range map[string][]string{
		"tasks?queue=mail":               {`aria-sort="ascending"><a href="tasks?queue=mail&amp;sort=due-last"`},
		"tasks?queue=mail&sort=due-last": {`aria-sort="descending"><a href="tasks?queue=mail&amp;sort=due"`},
		"tasks?queue=mail&status=failed": {
			`aria-sort="none"><a href="tasks?queue=mail&amp;sort=due-last&amp;status=failed"`,
			`aria-sort="descending"><a href="tasks?queue=mail&amp;sort=ended&amp;status=failed"`,
		},
		"tasks?queue=mail&status=failed&sort=ended":    {`aria-sort="ascending"><a href="tasks?queue=mail&amp;sort=ended-last&amp;status=failed"`},
		"tasks?status=failed&sort=due":                 {`aria-sort="ascending"><a href="tasks?sort=due-last&amp;status=failed"`},
		"recurring?sort=next":                          {`<a href="recurring?sort=next" aria-current="true">next run</a>`},
		"tasks?sort=nothing":                           {"expected due, due-last, ended or ended-last"},
		"bulk?action=cancel&status=pending&selected=1": {"no task is selected"},
	} {
		body := c.get(path).Body.String()
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s: got the page\n%s\nwant the text %q", path, body, w)
			}
		}
	}
	for sort, want := range map[string]schedule.Sort{"": schedule.SortEndedLast, "due": schedule.SortDue, "ended": schedule.SortEnded} {
		r := &request{form: url.Values{"sort": {sort}}}
		if got, err := readSort(r, schedule.StatusFailed); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q and no error", sort, got, err, want)
		}
	}
}

// A bulk change of selected rows counts and changes exactly these rows, whatever characters their ids contain.
func TestSelection(t *testing.T) {
	c := open(service.RoleOperator)
	hidden := regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
	body := c.get("tasks?status=pending&queue=" + url.QueryEscape(scriptTag)).Body.String()
	form := url.Values{"selected": {"1"}, "status": {"pending"}, "action": {"cancel"}}
	for _, id := range []string{scriptTag, "a/b?c=d&e#f/../g", `"onmouseover="alert(1)`} {
		if !strings.Contains(body, `name="chosen" value="`+html.EscapeString(url.QueryEscape(id))+`"`) {
			t.Fatalf("got the list\n%s\nwant a checkbox for task %s", body, id)
		}
		form.Add("chosen", url.QueryEscape(id))
	}
	w := c.get(withQuery("bulk", form))
	if !strings.Contains(w.Body.String(), "Cancel 3 pending tasks?") || !strings.Contains(w.Body.String(), "ID is one of 3") {
		t.Fatalf("got %d\n%s\nwant a body with \"Cancel 3 pending tasks?\" and \"ID is one of 3\"", w.Code, w.Body)
	}
	sent := url.Values{}
	_, main, _ := strings.Cut(w.Body.String(), "<main")
	main, _, _ = strings.Cut(main, "</main>")
	for _, m := range hidden.FindAllStringSubmatch(main, -1) {
		sent.Add(html.UnescapeString(m[1]), strings.ReplaceAll(html.UnescapeString(m[2]), "\n", "\r\n")) // browsers send line breaks as CRLF
	}
	if w := c.post("bulk", sent); w.Code != http.StatusSeeOther || len(c.calls) != 1 {
		t.Errorf("got status %d and calls %q, want 303 and one call\n%s", w.Code, c.calls, w.Body)
	}
	if body := open(service.RoleViewer).get("tasks").Body.String(); strings.Contains(body, `type="checkbox" name=`) {
		t.Errorf("a viewer gets the page\n%s\nwant no checkboxes", body)
	}
}

// The pages use the configured title, color and trace link, and respect the setting that turns off single-letter keys.
func TestInstallation(t *testing.T) {
	c := open(service.RoleOperator)
	c.pages.o.Title, c.pages.o.Color = "shop <staging>", "#c62828"
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.AddCookie(&http.Cookie{Name: keysCookie, Value: "off"})
	body := c.do(r).Body.String()
	for _, want := range []string{
		"<title>Now · shop &lt;staging&gt;</title>", `<rect width="1" height="1" fill="#c62828"/>`,
		` data-keys="off">`, `<meta name="theme-color" content="#c62828">`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("got the page\n%s\nwant it to contain %s", body, want)
		}
	}
	trace := `<a href="https://traces.example.org/4bf92f3577b34da6a3ce929d0e0e4736" rel="noreferrer">`
	if body := c.get("task?id=binary").Body.String(); !strings.Contains(body, trace) {
		t.Errorf("got the page\n%s\nwant the link %s", body, trace)
	}
}

// A long error appears only once on a page, in a collapsed element.
func TestLongErrors(t *testing.T) {
	c := open(service.RoleOperator)
	x := c.tasks["order-10035-expire"]
	x.LastError = "begin " + strings.Repeat("long ", 1600) + "end of it"
	c.tasks[x.ID] = x
	body := c.get("task?id=" + x.ID).Body.String()
	if n := strings.Count(body, "end of it"); n != 1 || !strings.Contains(body, `<details class="error long">`) {
		t.Errorf("the page contains the error %d times, want once, in a <details class=\"error long\">:\n%s", n, body)
	}
}

func TestBadInput(t *testing.T) {
	c := open(service.RoleOperator)
	for path, want := range map[string]int{
		"tasks?from=yesterday": 400, "tasks?status=lost": 400, "tasks?after=x": 400, "?from=x": 400,
		"?from=2026-11-23T00:00:00Z&to=2026-11-22T00:00:00Z": 400, "nothing": 404, "task?id=none": 404, "task": 404,
		"job?id=none": 404, "recurring-task?name=none": 404, "dead-queue?queue=x&limit=0": 400,
		"dead-errors?queue=x&order=worst": 400, "bulk": 400, "requeue?queue=x&dry=1&rate=-1": 400, "requeue": 400,
	} {
		if w := c.get(path); w.Code != want || !strings.Contains(w.Body.String(), `aria-label="Pages"`) {
			t.Errorf("%s: got %d, want %d\n%s", path, w.Code, want, w.Body)
		}
	}
	for path, form := range map[string]url.Values{
		"task-new":       {"id": {"x"}, "at": {"soon"}, "body": {"what I wrote"}},
		"recurring-edit": {"name": {"x"}, "cron": {"* *"}, "queue": {"q"}, "body": {"what I wrote"}},
	} {
		if w := c.post(path, form); w.Code != 400 || !strings.Contains(w.Body.String(), "what I wrote") {
			t.Errorf("%s: got %d, want 400 and a form with the submitted body\n%s", path, w.Code, w.Body)
		}
	}
}

func TestUnavailable(t *testing.T) {
	c := open(service.RoleOperator)
	c.err = fmt.Errorf("%w: the database does not answer: connection refused", service.ErrUnavailable)
	for _, path := range reading {
		w := c.get(path)
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("%q: status %d, want %d", path, w.Code, http.StatusServiceUnavailable)
		}
		for _, want := range []string{"the database does not answer", `aria-label="Pages"`} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%q: the page does not contain %q:\n%s", path, want, w.Body)
			}
		}
	}
	for path, form := range asking {
		if w := c.post(path, form); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d\n%s\nwant 503", path, w.Code, w.Body)
		}
	}
}

// Only operators see a driver's error.
func TestDriversErrors(t *testing.T) {
	for role, shown := range map[service.Role]bool{service.RoleViewer: false, service.RoleOperator: true} {
		c := open(role)
		c.err = errors.New("failed to connect to user=shop host=10.0.0.7")
		if w := c.get("tasks"); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "10.0.0.7") != shown {
			t.Errorf("role %s: got %d, want 503, with the driver's error: %t\n%s", role, w.Code, shown, w.Body)
		}
	}
}

// uncounted is a service in which only the histogram fails.
type uncounted struct{ *fake }

func (uncounted) Histogram(context.Context, schedule.Filter, time.Time, time.Time, int) (service.Histogram, error) {
	return service.Histogram{}, errors.New("failed to connect to user=shop host=10.0.0.7")
}

// Only operators see a driver's error in a part of a page, including live parts.
func TestDriversErrorsOfParts(t *testing.T) {
	for role, shown := range map[service.Role]bool{service.RoleViewer: false, service.RoleOperator: true} {
		c := open(role)
		c.pages = New(uncounted{c.fake}, Options{Now: func() time.Time { return c.now }})
		if w := c.get(""); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "10.0.0.7") != shown {
			t.Errorf("role %s: got %d, want 200, with the driver's error: %t\n%s", role, w.Code, shown, w.Body)
		}
	}
}

// A body that a form shows and submits again is unchanged, although browsers send line breaks as CRLF and omit a
// leading one.
func TestBodiesComeBack(t *testing.T) {
	c := open(service.RoleOperator)
	for body, encoding := range map[string]string{"a\nb\n": encodingText, "\nb": encodingText, "a\r\nb": encodingBase64, "a\rb": encodingBase64} {
		task := c.tasks["binary"]
		task.ID, task.Body = "lines", []byte(body)
		c.tasks["lines"] = task
		page := c.get("task-new?copy=lines").Body.String()
		_, shown, _ := strings.Cut(page, `name="body"`)
		_, shown, _ = strings.Cut(shown, ">")
		shown, _, _ = strings.Cut(shown, "</textarea>")
		shown = html.UnescapeString(strings.TrimPrefix(shown, "\n"))
		w := c.post("task-new", url.Values{
			"id": {"new"}, "at": {"+1h"}, "queue": {"mail"}, "encoding": {encoding},
			"body": {strings.ReplaceAll(shown, "\n", "\r\n")},
		})
		if got := string(c.tasks["new"].Body); got != body {
			t.Errorf("submitting the form, which shows %q, stored the body %q, want %q (status %d)", shown, got, body, w.Code)
		}
		delete(c.tasks, "new")
	}
}

func TestPreferences(t *testing.T) {
	c := open(service.RoleViewer)
	w := c.post("preferences", url.Values{"zone": {"Asia/Tokyo"}, "back": {"tasks?queue=mail"}})
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "tasks?queue=mail" || len(w.Result().Cookies()) != 1 {
		t.Fatalf("got %d %v, want a redirect to tasks?queue=mail and one cookie", w.Code, w.Header())
	}
	r := httptest.NewRequest(http.MethodGet, "/task?id=empty", http.NoBody)
	r.AddCookie(w.Result().Cookies()[0])
	if body := c.do(r).Body.String(); !strings.Contains(body, "2026-11-24 21:00:00 JST") || !strings.Contains(body, `title="2026-11-24T12:00:00.000Z"`) {
		t.Errorf("got the page\n%s\nwant times in Tokyo's time zone, with UTC in their titles", body)
	}
	utc := regexp.MustCompile(`>[^<]*\d{4}-\d\d-\d\dT\d\d:`) // times in a text, but not in a title
	for _, at := range []string{"/task?id=empty", "/audit", "/", "/trace?id=empty", "/job?id=1"} {
		r := httptest.NewRequest(http.MethodGet, at, http.NoBody)
		r.AddCookie(w.Result().Cookies()[0])
		if found := utc.FindString(c.do(r).Body.String()); found != "" {
			t.Errorf("page %s shows the time %s in UTC, want the chosen zone", at, found)
		}
	}
	if w := c.post("preferences", url.Values{"zone": {"Mars/Olympus"}}); w.Code != http.StatusBadRequest {
		t.Errorf("an unknown time zone: got %d, want 400", w.Code)
	}
	for _, back := range []string{"https://example.org/", "//example.org", "/tasks", `\\example.org`, "../x", "javascript:alert(1)", ""} {
		if to := Local(back); to != "./" {
			t.Errorf(`Local(%q) = %q, want "./"`, back, to)
		}
	}
}

func TestLogin(t *testing.T) {
	c := open(service.RoleOperator)
	show := func(method, path string, form url.Values) string {
		r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		c.pages.Login(w, r, http.StatusUnauthorized, "")
		if w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), `aria-label="Pages"`) {
			t.Errorf("got %d\n%s\nwant 401 and no \"aria-label=\"Pages\"\" in it", w.Code, w.Body)
		}
		return w.Body.String()
	}
	if body := show(http.MethodGet, "/tasks?queue=mail", nil); !strings.Contains(body, `name="next" value="tasks?queue=mail"`) {
		t.Errorf("got the login page\n%s\nwant a text with \"name=\"next\" value=\"tasks?queue=mail\"\"", body)
	}
	body := show(http.MethodPost, "/task-reschedule", url.Values{"id": {"42"}, "at": {"+1h"}, service.FormTokenField: {"t0ken"}})
	if !strings.Contains(body, `value="task-reschedule?at=%2B1h&amp;id=42"`) || !strings.Contains(body, "Nothing was changed") {
		t.Errorf("got the login page\n%s\nwant the form's fields in the address to return to, and the text \"Nothing was changed\"", body)
	}
	if w := c.get("task-reschedule?at=%2B7h&id=binary"); !strings.Contains(w.Body.String(), `value="&#43;7h"`) {
		t.Errorf("got the form\n%s\nwant it to contain the value +7h", w.Body)
	}
	if body := show(http.MethodPost, "/task-new", url.Values{"body": {strings.Repeat("long ", 2000)}}); !strings.Contains(body, "long long") {
		t.Errorf("got the login page\n%.2000s\nwant the value of the field body, which is too long for an address", body)
	}
	body = show(http.MethodPost, "/login", url.Values{"next": {"https://example.org"}, "password": {"s3cret"}})
	for _, kept := range []string{"example.org", "s3cret"} {
		if strings.Contains(body, kept) {
			t.Errorf("got the login page\n%s\nwant it without %q", body, kept)
		}
	}
}

// Every control has a label, every form that is submitted by POST has a token, and every page has one main heading.
func TestAccessible(t *testing.T) {
	c := open(service.RoleOperator)
	paths := slices.Clone(reading)
	for path, form := range asking {
		paths = append(paths, withQuery(path, form))
	}
	control := regexp.MustCompile(`<(?:input|select|textarea)\b[^>]*>`)
	id := regexp.MustCompile(` id="([^"]+)"`)
	for _, path := range paths {
		body := c.get(path).Body.String()
		for _, tag := range control.FindAllString(body, -1) {
			if strings.Contains(tag, `type="hidden"`) || strings.Contains(tag, ` aria-label="`) {
				continue
			}
			m := id.FindStringSubmatch(tag)
			switch {
			case len(m) == 0:
				t.Errorf("page %s: control %s has neither a label nor an id, want one", path, tag)
			case !strings.Contains(body, `<label for="`+m[1]+`"`):
				t.Errorf("page %s has no label for control %s, want one", path, tag)
			}
		}
		seen := map[string]bool{}
		for _, m := range id.FindAllStringSubmatch(body, -1) {
			if seen[m[1]] {
				t.Errorf("page %s: two elements have the id %s, want unique ids", path, m[1])
			}
			seen[m[1]] = true
		}
		if n := strings.Count(body, "<h1"); n != 1 {
			t.Errorf("page %s: got %d main headings, want 1", path, n)
		}
		if posts, tokens := strings.Count(body, `method="post"`), strings.Count(body, `name="`+service.FormTokenField+`" value="t0ken"`); posts != tokens {
			t.Errorf("page %s: got %d form tokens, want one for each of the %d forms", path, tokens, posts)
		}
	}
}

func TestLive(t *testing.T) {
	c := open(service.RoleViewer)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.pages.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), c.who)))
	}))
	defer srv.Close()
	for _, path := range []string{
		"/live", "/live-tasks?status=pending", "/live-recurring?sort=next", "/live-held", "/live-dead", "/live-layouts", "/live-audit", "/live-audit?target=heartbeat",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		t.Cleanup(cancel)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, http.NoBody)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		event, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil || event != "event: parts\n" {
			t.Errorf(`%s: got the first line %q (error %v), want "event: parts"`, path, event, err)
		}
		cancel()
	}
	for line := range strings.Lines(string(eventOf("parts", []byte("a\n\n b \n")))) {
		if !slices.Contains([]string{"event: parts\n", "data: a\n", "data: b\n", "\n"}, line) {
			t.Errorf("got the line %q in the event stream, want only the event's name and its non-empty data lines", line)
		}
	}
}

// readings counts how many times lists of tasks are read. Each read takes a while.
type readings struct {
	*fake

	n    atomic.Int64
	took time.Duration
}

func (s *readings) Tasks(ctx context.Context, who service.Identity, f schedule.Filter) (service.TaskPage, error) {
	s.n.Add(1)
	<-time.After(s.took) // in virtual time
	return s.fake.Tasks(ctx, who, f)
}

// A list is read no more often for many viewers than for one, and less often if a read takes longer. A list that has
// not changed is not sent again.
func TestLiveTasksAreReadOnce(t *testing.T) {
	for took, most := range map[time.Duration]int64{time.Millisecond: 16, time.Second: 4} {
		synctest.Test(t, func(t *testing.T) {
			s := &readings{fake: newFake(noon), took: took}
			p := New(s, Options{Now: func() time.Time { return noon.Add(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))) }})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var events, still atomic.Int64
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					r := httptest.NewRequest(http.MethodGet, "/live-tasks?status=pending&queue=mail&to=%2B24h", http.NoBody)
					q := &request{
						Request: r, who: service.Caller{Identity: service.Identity{Role: service.RoleViewer}},
						prefs: preferences{zone: time.UTC}, lang: english, form: r.URL.Query(),
					}
					_ = p.feedPage(p.tasks)(ctx, q, func(event []byte) error {
						if bytes.HasPrefix(event, []byte("event: parts\n")) {
							events.Add(1)
						} else {
							still.Add(1)
						}
						return nil
					})
				})
			}
			all.Wait()
			if n := s.n.Load(); n < 2 || n > most {
				t.Errorf("the list was read %d times within a minute, want 2 to %d", n, most)
			}
			if events.Load() != 200 || still.Load() < 200 {
				t.Errorf("the 200 viewers received %d lists and %d keep-alives, want 200 and at least 200", events.Load(), still.Load())
			}
		})
	}
}

func TestAssets(t *testing.T) {
	c := open(service.RoleViewer)
	c.who = service.Caller{} // the assets are served without a login too
	for path, kind := range map[string]string{
		"assets/console.css": "text/css; charset=utf-8",
		"assets/console.js":  "text/javascript; charset=utf-8",
		"assets/icon.svg":    "image/svg+xml",
	} {
		w := c.get(path + "?v=" + assetVersion())
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d, want %d", path, w.Code, http.StatusOK)
		}
		if got := w.Header().Get("Content-Type"); got != kind {
			t.Errorf("%s: Content-Type %q, want %q", path, got, kind)
		}
		if body, _ := io.ReadAll(w.Result().Body); len(body) == 0 {
			t.Errorf("GET %s: got an empty body", path)
		}
		if got := w.Header().Get("Cache-Control"); !strings.Contains(got, "immutable") {
			t.Errorf(`%s: Cache-Control %q, want it to contain "immutable"`, path, got)
		}
	}
	for _, path := range []string{"assets/", "assets/../page.go", "assets/none.css"} {
		if w := c.get(path); w.Code == http.StatusOK {
			t.Errorf("GET %s: got 200, want an error", path)
		}
	}
}

// If the broker does not answer, the page shows its alarms as unknown.
func TestAlarmsOfASilentBroker(t *testing.T) {
	p := New(silent{newFake(noon)}, Options{})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	p.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), open(service.RoleViewer).who)))
	_, alarms, _ := strings.Cut(w.Body.String(), "<h3>Alarms</h3>")
	if !strings.HasPrefix(alarms, `<p class="none">Unknown: `) {
		t.Errorf(`alarms of a broker that does not answer: got %.60s, want them to begin with <p class="none">Unknown: `, alarms)
	}
}

// unrated is a service without message rates and clients, for one of several reasons.
type unrated struct {
	*fake

	noRates, unmanaged bool
}

func (u unrated) Overview(context.Context, service.Identity) (service.Overview, error) {
	o := service.Overview{At: noon, NoRates: u.noRates, Unmanaged: u.unmanaged}
	o.Status.Broker = &status.Broker{Version: "4.3.6"}
	return o, nil
}

// The page says why message rates are unknown: without a management API, with one that does not answer in time, and
// before the broker has counted a message.
func TestUnknownRates(t *testing.T) {
	for want, u := range map[string]unrated{
		"Unknown: this needs the management API.":                  {unmanaged: true},
		"Unknown: this could not be read from the management API.": {},
		"Unknown: the broker has not counted any message yet.":     {noRates: true},
	} {
		u.fake = newFake(noon)
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		New(u, Options{}).ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), open(service.RoleViewer).who)))
		_, rates, _ := strings.Cut(w.Body.String(), "<h3>Message rates")
		_, rates, _ = strings.Cut(rates, "\n")
		if !strings.HasPrefix(rates, `<p class="none">`+want) {
			t.Errorf("%+v: got the rates %.100s, want %s", u, rates, want)
		}
	}
}

// Every page shows the counts of queues without a leader as unknown, and never as 0 or empty.
func TestPagesOfALostMajority(t *testing.T) {
	p := New(leaderless{newFake(noon)}, Options{})
	get := func(path string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		p.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), open(service.RoleViewer).who)))
		return w.Body.String()
	}
	now := get("/")
	if _, dead, _ := strings.Cut(now, `<h2 id="dead">`); !strings.Contains(dead, "unknown</td>") {
		t.Errorf(`dead letters: got %.600s, want them to contain "unknown</td>"`, dead)
	}
	if !strings.Contains(now, `class="total">unknown</text>`) {
		t.Errorf("got the page\n%s\nwant the total of the clock of delay queues to be unknown", now)
	}
	_, clock, _ := strings.Cut(now, `<h2 id="clock">`)
	clock, _, _ = strings.Cut(clock, "</section>")
	if n := strings.Count(clock, `class="n">unknown</td>`); n != 12 || strings.Contains(clock, `class="n">0</td>`) {
		t.Errorf("delay queues: got\n%s\nwant the queues and messages of all 6 rings to be unknown, and none 0", clock)
	}
	if _, alarms, _ := strings.Cut(now, "<h3>Alarms</h3>"); !strings.HasPrefix(alarms, `<p class="none">Unknown: `) {
		t.Errorf(`alarms: got %.60s, want them to begin with <p class="none">Unknown: `, alarms)
	}
	dead := get("/dead")
	for _, wrong := range []string{"No dead letters.", "No messages are parked"} {
		if strings.Contains(dead, wrong) {
			t.Errorf("the page of dead letters contains %q, want the counts shown as unknown", wrong)
		}
	}
}

// leaderless is a service for a broker whose queues have no leader and whose alarms are unknown.
type leaderless struct{ *fake }

func (l leaderless) Overview(context.Context, service.Identity) (service.Overview, error) {
	unknown := status.Count{Unknown: true}
	o := service.Overview{At: noon}
	o.Status.Broker = &status.Broker{Version: "4.3.6"}
	o.Status.Layouts = []status.Layout{{Name: "delay.bucket", Waiting: unknown}}
	o.Status.Parked = status.DeadLetters{Queue: "delay.parked", Unknown: true}
	o.Status.Destinations = []status.Destination{
		{Name: "q", Queue: "q", Exists: true, Waiting: unknown, Dead: &status.DeadLetters{Queue: "q.dead", Unknown: true}},
	}
	return o, nil
}

// silent is a service for a broker that does not answer.
type silent struct{ *fake }

func (s silent) Overview(context.Context, service.Identity) (service.Overview, error) {
	return service.Overview{At: noon}, nil
}
