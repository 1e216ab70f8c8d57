package page

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// The page for an address that does not exist has working links and styles, however many levels the address has.
func TestNestedAddress(t *testing.T) {
	c := open(service.RoleOperator)
	links := regexp.MustCompile(`(?:href|src|action)="([^"#][^"]*)"`)
	for _, path := range []string{"tasks/x", "tasks/", "a/b/c"} {
		w := c.get(path)
		if w.Code != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, w.Code)
		}
		if n := strings.Count(strings.ToLower(w.Body.String()), ">there is no such page<"); n != 1 {
			t.Errorf("page %s says %d times that there is no such page, want once", path, n)
		}
		base := &url.URL{Path: "/" + path}
		for _, m := range links.FindAllStringSubmatch(w.Body.String(), -1) {
			to, err := base.Parse(m[1])
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(to.Path, "/") > 1 && !strings.HasPrefix(to.Path, "/assets/") {
				t.Errorf("page %s links to %s, want links with one level only", path, to.Path)
			}
		}
	}
	w := httptest.NewRecorder()
	c.pages.Login(w, httptest.NewRequest(http.MethodGet, "/tasks/x", http.NoBody), http.StatusUnauthorized, "")
	if !strings.Contains(w.Body.String(), `action="../login"`) {
		t.Errorf("the login page at /tasks/x: got %.2000s, want a form that is submitted to ../login", w.Body)
	}
}

// An error with several lines is shown as one sentence, and a time in it is shown in the browser's zone.
func TestSentences(t *testing.T) {
	c := open(service.RoleOperator)
	x := c.tasks["order-10035-expire"]
	x.LastError = "cannot connect:\n\thost a: refused\nsince 2026-11-22T11:00:00Z"
	c.tasks[x.ID] = x
	_, lead, _ := strings.Cut(c.get("task?id="+x.ID).Body.String(), `<p class="lead">`)
	lead, _, _ = strings.Cut(lead, "</p>")
	if want := "cannot connect: host a: refused; since <time "; !strings.Contains(lead, want) || strings.Contains(lead, `\n`) {
		t.Errorf("got the lead %s, want it to contain %q and no escaped line break", lead, want)
	}
}

// The label of the failed tasks names the chosen period.
func TestFailedOfThePeriod(t *testing.T) {
	for over, label := range map[string]string{"hour": "Failed (last hour)", "day": "Failed (last day)", "week": "Failed (last week)"} {
		body := open(service.RoleViewer).get("?over=" + over).Body.String()
		if !strings.Contains(body, "<dt>"+label+"</dt>") || strings.Contains(body, "since yesterday") {
			t.Errorf("page with over=%s: want the label %q and no \"since yesterday\" in\n%s", over, label, body)
		}
	}
}

// Long ids that differ only at their end are shortened in the middle, and the tooltip has the whole id.
func TestIDsKeepTheirEnds(t *testing.T) {
	c := open(service.RoleViewer)
	x := c.tasks["binary"]
	for _, end := range []string{"1", "2"} {
		x.ID = "invoice-" + strings.Repeat("x", 80) + "-" + end
		c.tasks[x.ID] = x
	}
	body := c.get("tasks?prefix=invoice").Body.String()
	for _, end := range []string{"-1</bdi>", "-2</bdi>", `-1">invoice-`, `-2">invoice-`} {
		if strings.Count(body, end) != 1 {
			t.Errorf("the page contains %q %d times, want once", end, strings.Count(body, end))
		}
	}
	if got := middle(9, "0123456789"); got != "01234…789" && got != "0123…6789" {
		t.Errorf(`middle(9, "0123456789") = %q, want "01234…789" or "0123…6789"`, got)
	}
	for n, want := range map[int]string{10: "0123456789", 5: "01…89", 4: "01…9"} {
		if got := middle(n, "0123456789"); got != want {
			t.Errorf(`middle(%d, "0123456789") = %s, want %s`, n, got, want)
		}
	}
}

// Pages without automatic updates say so, and pages with them have the address of their event stream.
func TestLiveOrNot(t *testing.T) {
	c := open(service.RoleOperator)
	const still = "this page does not refresh automatically"
	for path, live := range map[string]string{
		"": "live", "tasks": "live-tasks", "recurring?sort=next": "live-recurring?sort=next", "held": "live-held", "dead": "live-dead", "layouts": "live-layouts",
		"audit": "live-audit", "audit?target=heartbeat": "live-audit?target=heartbeat",
		"audit?before=3": "", "task?id=empty": "", "trace?id=empty": "", "dead-queue?queue=mail.dead": "", "dead-errors?queue=mail.dead": "", "task-errors": "", "recurring-task?name=heartbeat": "",
	} {
		body := c.get(path).Body.String()
		if strings.Contains(body, still) != (live == "") {
			t.Errorf("page %q contains %q: got %t, want %t", path, still, live != "", live == "")
		}
		if live != "" && !strings.Contains(body, `data-live="`+live+`"`) {
			t.Errorf("page %q does not contain data-live=%q", path, live)
		}
	}
	if body := c.get("task-cancel?id=binary").Body.String(); strings.Contains(body, still) {
		t.Errorf("the confirmation page contains %q, want it only on pages with live parts:\n%.2000s", still, body)
	}
}

// The requeue form suggests the reasons and destinations of the messages in its queue, and accepts several of them.
func TestRequeueSuggests(t *testing.T) {
	c := open(service.RoleOperator)
	body := c.get("requeue?queue=mail.dead&reason=retries").Body.String()
	for _, want := range []string{
		`<datalist id="reasons"><option value="rejected"><option value="retries"></datalist>`, `<datalist id="destinations"><option value="mail"></datalist>`,
		`id="reason" name="reason" list="reasons" value="retries"`, `aria-label="Another reason" name="reason" list="reasons"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("got the form\n%s\nwant it to contain %s", body, want)
		}
	}
}
