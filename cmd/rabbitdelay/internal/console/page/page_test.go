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

// console serves the pages of a fake, as a certain user sees them.
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

// reading lists all pages that change nothing.
var reading = []string{
	"", "?from=2026-11-22T12:00:00Z&to=2026-11-23T12:00:00Z", "tasks", "tasks?queue=mail&status=pending",
	"task-errors?queue=mail", "task-errors?order=most&status=pending", link("task", "id", scriptTag),
	link("task", "id", "binary"), "task?id=empty",
	"trace?id=binary", "trace?id=dead-1", "trace?id=none", link("trace", "id", scriptTag), link("trace", "id", override),
	"recurring", "recurring-task?name=nightly-report", link("recurring-task", "name", scriptTag), "dead",
	"dead-queue?queue=mail.dead", "dead-errors?queue=mail.dead", "layouts", "held", "audit", "audit?target=heartbeat",
	"job?id=running", "job?id=done",
}

// asking lists the forms with their fields, for everything that changes something.
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
			t.Errorf("the page has no link to %s", link)
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

// A misspelt field must not select everything, least of all on a page that can change the selection.
func TestUnknownFields(t *testing.T) {
	c := open(service.RoleOperator)
	for _, path := range []string{
		"?qeue=mail", "tasks?qeue=mail", "task-errors?qeue=mail", "bulk?action=cancel&qeue=mail", "requeue?queue=mail.dead&eror=x", "discard?queue=mail.dead&eror=x",
		"dead?queue=mail.dead", "dead-queue?queue=mail.dead&eror=x", "dead-errors?queue=mail.dead&eror=x", "audit?targt=x", "recurring?name=x",
	} {
		w := c.get(path)
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: status %d, want 400", path, w.Code)
		}
		if !strings.Contains(w.Body.String(), "unknown field; expected ") {
			t.Errorf("%s: nothing says that the field is unknown", path)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("got the calls %q, want none", c.calls)
	}
}

// A query of which a part would be ignored selects nothing.
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
			t.Errorf("%s: got status %d, want 400 and a page with %q", path, w.Code, says)
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

// The question warns if the destination to be paused or limited is unknown.
func TestHoldBackQuestion(t *testing.T) {
	c := open(service.RoleOperator)
	for path, want := range map[string]bool{
		"destination-pause?queue=mial": true, "destination-rate-limit?queue=mial": true,
		"destination-pause?queue=mail": false, "destination-resume?queue=mial": false,
	} {
		if body := c.get(path).Body.String(); strings.Contains(body, "has the name mial; did you mean mail?") != want {
			t.Errorf("%s: the page has the hint: got %t, want %t\n%s", path, !want, want, body)
		}
	}
}

// The trace page asks for an id, and says where its message is. A user who may requeue the message gets a link.
func TestTrace(t *testing.T) {
	c := open(service.RoleOperator)
	if body := c.get("trace").Body.String(); !strings.Contains(body, `id="trace-id"`) || strings.Contains(body, "In the database") {
		t.Errorf("the page without an id has the wrong fields:\n%s", body)
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
				t.Errorf("%s has no %q:\n%s", path, w, body)
			}
		}
	}
}

// The database knows which relays run. A database without one is the first thing to fix.
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
			t.Errorf("%v: no relay runs: got %t, want %t", tt.relays, none, tt.none)
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
				t.Errorf("%s has the inline script or style %q", path, found)
			}
			// A form that copies a task contains the task's strings unchanged, in a separate field.
			if strings.Contains(body, "\u202e") && !strings.Contains(path, "copy=") {
				t.Errorf("page %s has a character that reverses the direction of text", path)
			}
		}
	}
}

func TestBodies(t *testing.T) {
	c := open(service.RoleOperator)
	if body := c.get("task?id=binary").Body.String(); !strings.Contains(body, "00 01 02 ff fe 3c 73 3e") || !strings.Contains(body, "AAEC//48cz4=") {
		t.Errorf("a binary body is not shown in hex and base64:\n%s", body)
	}
	if body := c.get("task?id=order-10000-expire").Body.String(); !strings.Contains(body, "{&#34;order&#34;: 42}") {
		t.Errorf("a JSON body is not shown as text:\n%s", body)
	}
	// The fake service returns the body to every role, and the pages hide it.
	c = open(service.RoleViewer)
	for _, path := range []string{"task?id=order-10000-expire", "dead-queue?queue=mail.dead", "recurring-task?name=nightly-report"} {
		body := c.get(path).Body.String()
		for _, private := range []string{"&#34;order&#34;", "a@example.org", "daily"} {
			if strings.Contains(body, private) {
				t.Errorf("page %s shows a viewer %q, which is a part of a body", path, private)
			}
		}
	}
}

// A recurring task has the same state as in the output of the command, and one that is not active has no next times.
func TestRecurringStates(t *testing.T) {
	c := open(service.RoleOperator)
	for name, state := range map[string]string{"nightly-report": "active", "heartbeat": "paused", scriptTag: "invalid"} {
		body := c.get(link("recurring-task", "name", name)).Body.String()
		if !strings.Contains(body, `<span class="status `+state+`">`+state+`</span>`) || strings.Contains(body, "Scheduled</th>") != (state == "active") {
			t.Errorf("recurring task %s has the wrong state on its page:\n%s", name, body)
		}
	}
}

func TestViewerMayLookOnly(t *testing.T) {
	c := open(service.RoleViewer)
	for _, path := range reading {
		body := c.get(path).Body.String()
		for _, m := range regexp.MustCompile(`(?:action|href)="([a-z-]+)`).FindAllStringSubmatch(body, -1) {
			if _, ok := asking[m[1]]; ok {
				t.Errorf("page %q offers a viewer the action %s", path, m[1])
			}
		}
	}
	for path, form := range asking {
		if w := c.get(withQuery(path, form)); w.Code != http.StatusForbidden {
			t.Errorf("GET %s: got %d, want 403", path, w.Code)
		}
		if w := c.post(path, form); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `aria-label="Pages"`) {
			t.Errorf(`POST %s: got %d, want 403 and a body with "aria-label="Pages""`, path, w.Code)
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
			t.Errorf("%s %s: %d to %q, %q, want %q, %q\n%s", x.path, x.form, w.Code, w.Header().Get("Location"), c.calls, x.to, x.call, w.Body)
			continue
		}
		if w := c.get(x.to); w.Code != http.StatusOK {
			t.Errorf("%s leads to %d, want 200", x.path, w.Code)
		}
	}
	if want := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC); c.tasks["binary"].Version != 5 {
		t.Errorf("moved to %v, version %d, want %v", c.tasks["binary"].DeliverAt, c.tasks["binary"].Version, want)
	}
}

// If another user was faster, the page says so, together with the current state of the task.
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
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if body := c.get("bulk?action=delete").Body.String(); !strings.Contains(body, "There is no filter") {
		t.Errorf("the page does not say that there is no filter:\n%s", body)
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

// The pages of a list together show every task once.
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
			t.Errorf("%s: got %d times, want 1", id, n)
		}
	}
	if len(seen) != 240 {
		t.Errorf("%d tasks, want 240", len(seen))
	}
}

// Failed tasks are shown with the newest first, other tasks by due time. Each column header links to the other order,
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

// Selected rows are counted and confirmed, and nothing else is changed, whatever characters their ids contain.
func TestSelection(t *testing.T) {
	c := open(service.RoleOperator)
	hidden := regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
	body := c.get("tasks?status=pending&queue=" + url.QueryEscape(scriptTag)).Body.String()
	form := url.Values{"selected": {"1"}, "status": {"pending"}, "action": {"cancel"}}
	for _, id := range []string{scriptTag, "a/b?c=d&e#f/../g", `"onmouseover="alert(1)`} {
		if !strings.Contains(body, `name="chosen" value="`+html.EscapeString(url.QueryEscape(id))+`"`) {
			t.Fatalf("%s cannot be selected in\n%s", id, body)
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
		sent.Add(html.UnescapeString(m[1]), strings.ReplaceAll(html.UnescapeString(m[2]), "\n", "\r\n")) // browsers send fields in this form
	}
	if w := c.post("bulk", sent); w.Code != http.StatusSeeOther || len(c.calls) != 1 {
		t.Errorf("got status %d, calls %q, want 303 and one call; page\n%s", w.Code, c.calls, w.Body)
	}
	if body := open(service.RoleViewer).get("tasks").Body.String(); strings.Contains(body, `type="checkbox" name=`) {
		t.Errorf("a viewer gets the page\n%s\nwant no checkboxes", body)
	}
}

// The pages use the configured title, color and trace link, and single-letter keys stay off.
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
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	trace := `<a href="https://traces.example.org/4bf92f3577b34da6a3ce929d0e0e4736" rel="noreferrer">`
	if body := c.get("task?id=binary").Body.String(); !strings.Contains(body, trace) {
		t.Errorf("the page has no link to the trace:\n%s", body)
	}
}

// A long error appears on a page once, folded.
func TestLongErrors(t *testing.T) {
	c := open(service.RoleOperator)
	x := c.tasks["order-10035-expire"]
	x.LastError = "begin " + strings.Repeat("long ", 1600) + "end of it"
	c.tasks[x.ID] = x
	body := c.get("task?id=" + x.ID).Body.String()
	if n := strings.Count(body, "end of it"); n != 1 || !strings.Contains(body, `<details class="error long">`) {
		t.Errorf("the error is on the page %d times, want once, in a <details class=\"error long\">:\n%s", n, body)
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
			t.Errorf("%s: got %d, want 400 and a form that keeps the body\n%s", path, w.Code, w.Body)
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

// A driver's error is shown only to operators.
func TestDriversErrors(t *testing.T) {
	for role, shown := range map[service.Role]bool{service.RoleViewer: false, service.RoleOperator: true} {
		c := open(role)
		c.err = errors.New("failed to connect to user=shop host=10.0.0.7")
		if w := c.get("tasks"); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "10.0.0.7") != shown {
			t.Errorf("%s: got %d, want 503, with the address: %t\n%s", role, w.Code, shown, w.Body)
		}
	}
}

// uncounted is a service in which only the histogram fails.
type uncounted struct{ *fake }

func (uncounted) Histogram(context.Context, schedule.Filter, time.Time, time.Time, int) (service.Histogram, error) {
	return service.Histogram{}, errors.New("failed to connect to user=shop host=10.0.0.7")
}

// A driver's error in a part of a page, including the live part, is shown only to operators.
func TestDriversErrorsOfParts(t *testing.T) {
	for role, shown := range map[service.Role]bool{service.RoleViewer: false, service.RoleOperator: true} {
		c := open(role)
		c.pages = New(uncounted{c.fake}, Options{Now: func() time.Time { return c.now }})
		if w := c.get(""); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "10.0.0.7") != shown {
			t.Errorf("%s: got %d, want 200, with the address: %t\n%s", role, w.Code, shown, w.Body)
		}
	}
}

// Browsers send the line breaks of fields as CRLF, and leave out the first one. A body that is sent back in a form is
// unchanged nevertheless.
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
		t.Errorf("the page has no time in Tokyo's time zone:\n%s", body)
	}
	utc := regexp.MustCompile(`>[^<]*\d{4}-\d\d-\d\dT\d\d:`) // times in a text, but not in a title
	for _, at := range []string{"/task?id=empty", "/audit", "/", "/trace?id=empty", "/job?id=1"} {
		r := httptest.NewRequest(http.MethodGet, at, http.NoBody)
		r.AddCookie(w.Result().Cookies()[0])
		if found := utc.FindString(c.do(r).Body.String()); found != "" {
			t.Errorf("%s shows a time in UTC: %s", at, found)
		}
	}
	if w := c.post("preferences", url.Values{"zone": {"Mars/Olympus"}}); w.Code != http.StatusBadRequest {
		t.Errorf("got %d, want 400", w.Code)
	}
	for _, back := range []string{"https://example.org/", "//example.org", "/tasks", `\\example.org`, "../x", "javascript:alert(1)", ""} {
		if to := Local(back); to != "./" {
			t.Errorf(`%q leads to %q, want "./"`, back, to)
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
		t.Errorf("the form does not keep the value of its field:\n%s", w.Body)
	}
	if body := show(http.MethodPost, "/task-new", url.Values{"body": {strings.Repeat("long ", 2000)}}); !strings.Contains(body, "long long") {
		t.Errorf("got the login page\n%.2000s\nwant the value of the field body, which is too long for an address", body)
	}
	body = show(http.MethodPost, "/login", url.Values{"next": {"https://example.org"}, "password": {"s3cret"}})
	for _, kept := range []string{"example.org", "s3cret"} {
		if strings.Contains(body, kept) {
			t.Errorf("the page repeats %q:\n%s", kept, body)
		}
	}
}

// Every control has a name, every submitted form has its token, and every page has one main heading.
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
				t.Errorf("%s: %s has neither a label nor an id", path, tag)
			case !strings.Contains(body, `<label for="`+m[1]+`"`):
				t.Errorf("page %s has no label for %s", path, tag)
			}
		}
		seen := map[string]bool{}
		for _, m := range id.FindAllStringSubmatch(body, -1) {
			if seen[m[1]] {
				t.Errorf("%s: two elements have the id %s", path, m[1])
			}
			seen[m[1]] = true
		}
		if n := strings.Count(body, "<h1"); n != 1 {
			t.Errorf("%s: got %d first headings, want 1", path, n)
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
			t.Errorf(`%s: first line %q, %v, want "event: parts"`, path, event, err)
		}
		cancel()
	}
	for line := range strings.Lines(string(eventOf("parts", []byte("a\n\n b \n")))) {
		if !slices.Contains([]string{"event: parts\n", "data: a\n", "data: b\n", "\n"}, line) {
			t.Errorf("unexpected line %q in the event stream", line)
		}
	}
}

// readings counts how often lists of tasks are read. Each reading takes a while.
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

// A list is read no more often for many viewers than for one, and less often the longer it takes. A list that has not
// changed is not sent again.
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
				t.Errorf("read %d times within a minute, want 2 to %d", n, most)
			}
			if events.Load() != 200 || still.Load() < 200 {
				t.Errorf("%d lists and %d signs of life, want one list for each", events.Load(), still.Load())
			}
		})
	}
}

func TestAssets(t *testing.T) {
	c := open(service.RoleViewer)
	c.who = service.Caller{} // the page also works before a login
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
			t.Errorf("the answer to %s has no body", path)
		}
		if got := w.Header().Get("Cache-Control"); !strings.Contains(got, "immutable") {
			t.Errorf(`%s: Cache-Control %q, want it to contain "immutable"`, path, got)
		}
	}
	for _, path := range []string{"assets/", "assets/../page.go", "assets/none.css"} {
		if w := c.get(path); w.Code == http.StatusOK {
			t.Errorf("%s is served, want an error", path)
		}
	}
}

// It is unknown whether a broker that does not answer has raised an alarm.
func TestAlarmsOfASilentBroker(t *testing.T) {
	p := New(silent{newFake(noon)}, Options{})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	p.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), open(service.RoleViewer).who)))
	_, alarms, _ := strings.Cut(w.Body.String(), "<h3>Alarms</h3>")
	if !strings.HasPrefix(alarms, `<p class="none">Unknown: `) {
		t.Errorf(`alarms of a silent broker: got %.60s, want a text beginning with "<p class="none">Unknown: "`, alarms)
	}
}

// unrated is a service in which the message rates and the clients are unknown, for one of several reasons.
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
			t.Errorf("%+v: got %.100s, want %s", u, rates, want)
		}
	}
}

// The content of a queue without a leader is shown as unknown on each page, and never as empty.
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
		t.Errorf(`dead letters: got %.600s, want a text with "unknown</td>"`, dead)
	}
	if !strings.Contains(now, `class="total">unknown</text>`) {
		t.Errorf("got the page\n%s\nwant the total of the clock of delay queues to be unknown", now)
	}
	if _, alarms, _ := strings.Cut(now, "<h3>Alarms</h3>"); !strings.HasPrefix(alarms, `<p class="none">Unknown: `) {
		t.Errorf(`alarms: got %.60s, want a text beginning with "<p class="none">Unknown: "`, alarms)
	}
	dead := get("/dead")
	for _, wrong := range []string{"No dead letters.", "No messages are parked"} {
		if strings.Contains(dead, wrong) {
			t.Errorf("the page on dead letters says %q, although the broker does not answer", wrong)
		}
	}
}

// leaderless is a service whose queues have no leader, and whose management API did not report alarms.
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

// silent is a service whose broker does not answer.
type silent struct{ *fake }

func (s silent) Overview(context.Context, service.Identity) (service.Overview, error) {
	return service.Overview{At: noon}, nil
}
